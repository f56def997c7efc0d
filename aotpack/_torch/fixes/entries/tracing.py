"""Entries for tracing: fake tensors, symbolic shapes, AOTAutograd, its partitioner, and Dynamo."""

from __future__ import annotations

from functools import partial

from ..register import Fix

_fake = partial(Fix, component="fake_tensor")
_shapes = partial(Fix, component="symbolic_shapes")
_aot = partial(Fix, component="aot_autograd")
_partitioner = partial(Fix, component="partitioner")
_dynamo = partial(Fix, component="dynamo", since="2.11")  # aotpack uses no Dynamo of torch 2.9
_AOT = "torch._functorch._aot_autograd"
_FAKE_KERNELS = "torch._subclasses.fake_impls.op_implementations_dict"

FIXES = (
    _shapes(
        id="shapes-questions-about-zero",
        severity="wrong-values",
        summary="A model that compares a size with 0 is traced as if the size were never 0, without a guard.",
        searched="2026-11-25",
        apply="fixes.symbolic_shapes.zero_sizes:guard_zero_comparisons",
        patches=(
            *(f"torch.SymInt.__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "sym_max", "sym_min")),
            "torch.fx.experimental.sym_node.SymNode.maybe_as_int",
        ),
    ),
    _shapes(
        id="shapes-convolution-backend",
        severity="refuses",
        summary="The choice of a convolution's kernel leaves a guard on the batch, though it is made again at run time.",
        searched="2026-11-25",
        apply="fixes.symbolic_shapes.convolutions:choose_convolutions_without_guards",
        patches=("torch._C._select_conv_backend", "torch._C._conv_determine_backend_memory_format"),
    ),
    _fake(
        id="fake-masked-select-of-expanded",
        severity="wrong-values",
        summary="`masked_select` of a tensor that is expanded to its mask asserts that it finds no more elements than it has.",
        searched="2026-11-25",
        apply="fixes.fake_tensor.views:select_from_expanded",
        patches=("torch._subclasses.fake_impls.masked_select", _FAKE_KERNELS),
    ),
    _fake(
        id="fake-strides-of-views",
        severity="refuses",
        summary="The strides of a view are found by asking whether sizes are 1, with a guard that fixes them.",
        searched="2026-11-25",
        apply="fixes.fake_tensor.views:find_strides_of_views",
        patches=("torch._subclasses.fake_impls._compute_stride",),
    ),
    _fake(
        id="fake-ends-of-slices",
        severity="refuses",
        summary="A slice that may end before its bound has an unknown size, where the sliced dimension varies.",
        upstream="pytorch#175819",
        apply="fixes.fake_tensor.views:find_ends_of_slices",
        patches=("torch._subclasses.fake_impls._compute_slice_index",),
        fixed_in="2.13",
        since="2.11",
    ),
    _fake(
        id="fake-kernels-without-sizes",
        severity="refuses",
        summary="Operators such as `linalg.lstsq`, `ctc_loss` and `histogram` have no fake kernel, and cannot be traced.",
        upstream="pytorch#114353",
        apply="fixes.fake_tensor.kernels:register_fake_kernels",
        patches=("torch.fx.experimental.symbolic_shapes._constrain_range_for_size", _FAKE_KERNELS),
    ),
    _fake(
        id="fake-sizes-of-attention",
        severity="memory-safety",
        summary="Attention's kernel divides by sizes and reads as many values as keys; no guard is left on either.",
        upstream="pytorch#141219",
        apply="fixes.fake_tensor.kernels:guard_attention_sizes",
        patches=("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default", _FAKE_KERNELS),
    ),
    _fake(
        id="fake-strides-of-kernels",
        severity="strides",
        summary="Fake kernels of 66 operators give other strides than kernels do: `as_strided` reads other elements.",
        upstream="pytorch#145094",
        apply="fixes.fake_tensor.strides:fix_fake_strides",
        patches=("torch._subclasses.fake_tensor.FakeTensorMode.dispatch",),
    ),
    _fake(
        id="fake-types-of-kernels",
        severity="wrong-values",
        summary="Fake kernels of norms and losses with arguments of two element types return other types than kernels do.",
        upstream="pytorch#197098",
        apply="fixes.fake_tensor.types:fix_fake_types",
        patches=("torch._subclasses.fake_tensor.FakeTensorMode.dispatch",),
    ),
    _fake(
        id="fake-errors-of-linalg",
        severity="wrong-values",
        summary="`torch.linalg.cholesky` and others raise no error where eager does: their check has no result, and is left out.",
        upstream="pytorch#182965",
        apply="fixes.fake_tensor.effects:keep_errors_of_linalg",
        patches=("torch._higher_order_ops.effects._register_effectful_op",),
        fixed_in="2.13",
        since="2.11",  # the effects of 2.9 have no handle that takes them back
    ),
    _fake(
        id="fake-layouts-of-varying-sizes",
        severity="strides",
        summary="Channels-last images of sizes that vary are taken for contiguous ones, because a size may be 0 or 1.",
        searched="2026-11-25",
        apply="fixes.fake_tensor.strides:choose_layouts_by_hints",
        patches=(
            "torch._prims_common.are_strides_like_channels_last_or_false",
            "torch._prims_common.compute_elementwise_output_logical_to_physical_perm",
        ),
    ),
    _aot(
        id="aot-resize-as",
        severity="wrong-values",
        summary="`x.resize_as_(y)` of an argument is lost; `resize_` forgets its memory format.",
        searched="2026-11-25",
        apply="fixes.aot_autograd.storage_changes:ResizeMode",
    ),
    _aot(
        id="aot-wrappers-with-room",
        severity="refuses",
        summary="`as_strided_` cannot move an argument within its storage: the traced wrapper has a smaller one.",
        searched="2026-11-25",
        apply="fixes.aot_autograd.wrappers:enlarge_wrapper_storages",
        takes=("inputs",),
        patches=("torch.Tensor._make_wrapper_subclass",),
    ),
    _aot(
        id="aot-views-without-gradients",
        severity="wrong-values",
        summary="A result that is a view made under `no_grad` counts as one that gradients flow through.",
        upstream="pytorch#173926",
        apply="fixes.aot_autograd.views_without_gradients:record_views_without_gradients",
        patches=(
            "torch._functorch.aot_autograd.run_functionalized_fw_and_collect_metadata",
            "torch._functorch.aot_autograd.aot_stage1_graph_capture",
        ),
        fixed_in="2.13",
    ),
    _aot(
        id="aot-views-of-several-outputs",
        severity="wrong-values",
        summary="That results of one `chunk` share memory is hidden from autograd, so writes that eager refuses go through.",
        searched="2026-11-25",
        apply="fixes.aot_autograd.wrappers:keep_multi_output_views",
        patches=("torch._functionalize_is_multi_output_view",),
    ),
    _aot(
        id="aot-scan-returns-a-result-twice",
        severity="refuses",
        summary="A scan whose backward needs a result of the step returns it twice, and is refused for its own alias.",
        upstream="pytorch#195977",
        apply="fixes.aot_autograd.scans:make_scans_traceable",
        patches=(
            "torch._higher_order_ops.scan.ScanAutogradImpl._optimize_forward_intermediates",
            "torch._higher_order_ops.scan.create_bw_fn",
            "torch._higher_order_ops.scan.ScanAutogradOp.apply",
        ),
    ),
    _aot(
        id="aot-gradients-of-overlapping-results",
        severity="wrong-values",
        summary="Gradients of results whose elements share memory are copied to the same strides, where values are lost.",
        searched="2026-11-25",
        apply="fixes.aot_autograd.tangents:copy_overlapping_gradients",
        since="2.13",  # up to 2.11, tangents have a memory format instead of the strides of their results
        patches=(f"{_AOT}.schemas.MemoryFormatMeta.from_tensor",),
    ),
    _aot(
        id="aot-lazy-tangents",
        severity="wrong-values",
        summary="Tangents of lazily conjugated results are traced as lazily conjugated.",
        searched="2026-11-25",
        apply="fixes.aot_autograd.tangents:resolve_tangents",
        patches=(f"{_AOT}.collect_metadata_analysis.coerce_tangent_and_suggest_memory_format",),
    ),
    _aot(
        id="aot-strides-of-what-is-written",
        severity="strides",
        summary="A tensor written in place gets the strides of the functional operator (`index_add_` of a transposed one).",
        upstream="pytorch#133512",
        apply="fixes.fake_tensor.strides:keep_strides_in_place",
        patches=(
            "torch._subclasses.functional_tensor.FunctionalTensorMode.__torch_dispatch__",
            f"{_AOT}.graph_capture_wrappers.maybe_to_fresh_input",
        ),
    ),
    _aot(
        id="aot-sizes-of-overlapping-strides",
        severity="refuses",
        summary="The gradient of an `as_strided` whose elements overlap fixes every size that varies.",
        searched="2026-11-25",
        apply="fixes.aot_autograd.overlaps:SymbolicOverlapMode",
    ),
    _aot(
        id="aot-sizes-of-out",
        severity="wrong-values",
        summary="A tensor passed as `out=` keeps sizes that eager changes, and sums are not computed in its type.",
        upstream="pytorch#118648",
        apply="fixes.aot_autograd.out_sizes:OutSizeMode",
    ),
    _aot(
        id="aot-strided-after-a-write",
        severity="wrong-values",
        summary="`as_strided` of a slice that was written to reads other elements: a write makes it contiguous. It is refused.",
        upstream="pytorch#133512",
        apply="fixes.aot_autograd.overlaps:StridedSliceMode",
    ),
    _aot(
        id="aot-arguments-of-kernels",
        severity="wrong-values",
        summary="Types and sizes that eager refuses are taken, such as half precision with `float32` in `linear`.",
        upstream="pytorch#197554",
        apply="fixes.aot_autograd.kernel_arguments:KernelArgumentsMode",
    ),
    _aot(
        id="aot-strided-views-of-views",
        severity="refuses",
        summary="A write to `as_strided` of a view is refused (`y[:2].as_strided((2,), (2,)).mul_(2)`).",
        searched="2026-11-26",
        apply="fixes.aot_autograd.strided_views:StridedViewMode",
    ),
    _aot(
        id="aot-views-of-before",
        severity="wrong-values",
        summary="A write through a view whose base was transposed in place since has a wrong gradient. It is refused.",
        searched="2026-11-25",
        apply="fixes.aot_autograd.old_views:OldViewMutationMode",
    ),
    _aot(
        id="aot-windows-with-gaps",
        severity="wrong-values",
        summary="A write to windows with gaps (`x.unfold(1, 2, 3).mul_(2)`) sets the elements between them to zero.",
        upstream="pytorch#198102",
        apply="fixes.aot_autograd.windows:UnfoldMutationMode",
    ),
    _partitioner(
        id="partitioner-compared-values",
        severity="wrong-values",
        summary="The backward computes anew what it compares with an extreme, with other last bits: no gradient flows.",
        upstream="pytorch#186799",
        apply="fixes.partitioner.compared_values:save_compared_values",
        kind="graph",
    ),
    _partitioner(
        id="partitioner-draws",
        severity="wrong-values",
        summary="Draws of random numbers are merged with equal ones: the list of operators that draw is not complete.",
        searched="2026-11-25",
        apply="fixes.partitioner.draws:partition_random_operators",
        takes=("joint",),
        patches=("torch._functorch.partitioners.functionalize_rng_ops", "torch._functorch.compile_utils.rand_ops"),
    ),
    _dynamo(
        id="dynamo-hints-of-values",
        severity="wrong-values",
        summary="The value of a 0-dimensional example is a hint, and decisions are made on it.",
        searched="2026-11-25",
        apply="fixes.dynamo.capture:ignore_value_hints",
        patches=("torch._subclasses.fake_tensor._is_plain_tensor",),
    ),
    _dynamo(
        id="dynamo-attributes-of-the-model",
        severity="refuses",
        summary="The export front end copies the model's attributes over those of the captured module (`_graph`, `meta`).",
        searched="2026-11-25",
        apply="fixes.dynamo.capture:keep_attributes_separate",
        patches=("torch._dynamo.functional_export.create_fx_graph_from_captured_output",),
    ),
    _dynamo(
        id="dynamo-results-of-functions",
        severity="strides",
        summary="A result of an `autograd.Function` that is its argument is that argument itself; eager returns another tensor.",
        searched="2026-11-25",
        apply="fixes.dynamo.functions:separate_results_from_arguments",
        patches=("torch._dynamo.variables.misc.AutogradFunctionVariable.call_apply",),
    ),
    _dynamo(
        id="dynamo-functions-in-transforms",
        severity="wrong-values",
        summary="The rules of an `autograd.Function` are left out in `torch.func.jvp` (and `grad`, `vmap`).",
        upstream="pytorch#192985",
        apply="fixes.dynamo.functions:refuse_functions_in_transforms",
        patches=("torch._dynamo.variables.misc.AutogradFunctionVariable.call_apply",),
    ),
    _dynamo(
        id="dynamo-functions-that-write",
        severity="wrong-values",
        summary="The gradient of an `autograd.Function` that writes to its argument (`mark_dirty`) is left out.",
        upstream="pytorch#184113",
        apply="fixes.dynamo.functions:refuse_functions_that_write",
        patches=("torch._dynamo.variables.misc.AutogradFunctionContextVariable.var_getattr",),
        fixed_in="2.13",
    ),
    _dynamo(
        id="dynamo-regions-taken-for-others",
        severity="wrong-values",
        summary="Nested compile regions of other layers are taken for the first one: classes of submodules are not compared.",
        searched="2026-11-25",
        apply="fixes.dynamo.regions:trace_every_region",
        patches=("torch._dynamo.variables.invoke_subgraph.is_reuse_eligible",),
        since="2.13",
    ),
    _dynamo(
        id="dynamo-tensors-changed-in-place",
        severity="wrong-values",
        summary="After a write in place (`t_`, `add_`) old sizes and `requires_grad` are read: gradients are lost.",
        upstream="pytorch#185888",
        apply="fixes.dynamo.tensors:read_fake_tensors",
        patches=tuple(
            f"torch._dynamo.variables.tensor.TensorVariable.{name}"
            for name in ("ndim", "_size", "stride", "is_contiguous", "requires_grad", "has_grad_fn", "specialize")
        ),
    ),
)
