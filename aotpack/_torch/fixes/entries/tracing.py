"""Entries for tracing: fake tensors, symbolic shapes, AOTAutograd, its partitioner, and Dynamo."""

from __future__ import annotations

from functools import partial

from ..register import Fix, Hook

_fake = partial(Fix, component="fake_tensor")
_shapes = partial(Fix, component="symbolic_shapes")
_aot = partial(Fix, component="aot_autograd")
_partitioner = partial(Fix, component="partitioner")
_dynamo = partial(Fix, component="dynamo")
_AOT = "torch._functorch._aot_autograd"
_FAKE_KERNELS = "torch._subclasses.fake_impls.op_implementations_dict"

FIXES = (
    _shapes(
        id="shapes-questions-about-zero",
        severity="wrong-values",
        summary="A model that compares a size with 0 is traced as if the size were never 0, without a guard.",
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
        apply="fixes.symbolic_shapes.convolutions:choose_convolutions_without_guards",
        patches=("torch._C._select_conv_backend", "torch._C._conv_determine_backend_memory_format"),
    ),
    _fake(
        id="fake-masked-select-of-expanded",
        severity="wrong-values",
        summary="`masked_select` of a tensor that is expanded to its mask asserts that it finds no more elements than it has.",
        apply="fixes.fake_tensor.views:select_from_expanded",
        patches=("torch._subclasses.fake_impls.masked_select", _FAKE_KERNELS),
    ),
    _fake(
        id="fake-strides-of-views",
        severity="refuses",
        summary="The strides of a view are found by asking whether sizes are 1, with a guard that fixes them.",
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
        broken=("2.11",),
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
        id="fake-layouts-of-varying-sizes",
        severity="strides",
        summary="Channels-last images of sizes that vary are taken for contiguous ones, because a size may be 0 or 1.",
        apply="fixes.fake_tensor.strides:choose_layouts_by_hints",
        patches=(
            "torch._prims_common.are_strides_like_channels_last_or_false",
            "torch._prims_common.compute_elementwise_output_logical_to_physical_perm",
        ),
    ),
    _aot(
        id="aot-wrappers-with-room",
        severity="refuses",
        summary="`as_strided_` cannot move an argument within its storage: the traced wrapper has a smaller one.",
        apply="fixes.aot_autograd.wrappers:enlarge_wrapper_storages",
        takes=("inputs",),
        patches=("torch.Tensor._make_wrapper_subclass",),
    ),
    _aot(
        id="aot-views-of-several-outputs",
        severity="wrong-values",
        summary="That results of one `chunk` share memory is hidden from autograd, so writes that eager refuses go through.",
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
        apply="fixes.aot_autograd.tangents:copy_overlapping_gradients",
        since="2.13",  # up to 2.11, tangents have a memory format instead of the strides of their results
        patches=(f"{_AOT}.schemas.MemoryFormatMeta.from_tensor",),
    ),
    _aot(
        id="aot-lazy-tangents",
        severity="wrong-values",
        summary="Tangents of lazily conjugated results are traced as lazily conjugated.",
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
        id="aot-views-of-before",
        severity="wrong-values",
        summary="A write through a view whose base was transposed in place since has a wrong gradient. It is refused.",
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
        apply="fixes.partitioner.random_operators:partition_random_operators",
        takes=("joint",),
        patches=("torch._functorch.partitioners.functionalize_rng_ops", "torch._functorch.compile_utils.rand_ops"),
    ),
    _dynamo(
        id="dynamo-hints-of-values",
        severity="wrong-values",
        summary="The value of a 0-dimensional example is a hint, and decisions are made on it.",
        apply="fixes.dynamo.capture:ignore_value_hints",
        patches=("torch._subclasses.fake_tensor._is_plain_tensor",),
    ),
    _dynamo(
        id="dynamo-attributes-of-the-model",
        severity="refuses",
        summary="The export front end copies the model's attributes over those of the captured module (`_graph`, `meta`).",
        apply="fixes.dynamo.capture:keep_attributes_separate",
        patches=("torch._dynamo.functional_export.create_fx_graph_from_captured_output",),
    ),
    _dynamo(
        id="dynamo-results-of-functions",
        severity="strides",
        summary="A result of an `autograd.Function` that is its argument is that argument itself; eager returns another tensor.",
        apply="fixes.dynamo.functions:separate_results_from_arguments",
        patches=("torch._dynamo.variables.misc.AutogradFunctionVariable.call_apply",),
    ),
    _dynamo(
        id="dynamo-regions-taken-for-others",
        severity="wrong-values",
        summary="Nested compile regions of other layers are taken for the first one: classes of submodules are not compared.",
        apply="fixes.dynamo.regions:trace_every_region",
        patches=("torch._dynamo.variables.invoke_subgraph.is_reuse_eligible",),
        broken=("2.13", "2.14", "2.15"),
        since="2.13",
    ),
)

HOOKS = (
    Hook(
        id="aot-export",
        component="aot_autograd",
        summary="Traces the joint graph, with what the model returns before it is flattened.",
        module="aot_autograd",
        patches=(
            "torch._functorch.aot_autograd.create_tree_flattened_fn",
            "torch._functorch.aot_autograd.aot_export_joint_with_descriptors",
            f"{_AOT}.graph_compile.run_joint_graph_passes_on_hops",
        ),
    ),
    Hook(
        id="aot-lines",
        component="aot_autograd",
        summary="Records the user's lines behind the nodes of a joint graph.",
        module="api.source_lines",
        patches=(
            "torch.fx.experimental.proxy_tensor._MakefxTracer.__init__",
            "torch.fx.experimental.proxy_tensor.PythonKeyTracer._filter_traceback_frames",
        ),
    ),
    Hook(
        id="aot-gradient-writes",
        component="aot_autograd",
        summary="Refuses a custom backward that writes to a gradient which others have, too.",
        module="refusals.gradient_writes",
        patches=(
            "torch.autograd.function.BackwardCFunction.apply",
            "torch.autograd.grad",
            "torch.Tensor.register_hook",
        ),
    ),
    Hook(
        id="partitioner-budget",
        component="partitioner",
        summary="Chooses what is saved within a memory budget.",
        module="memory_budget",
        patches=(
            "torch._functorch._activation_checkpointing.knapsack.dp_knapsack",
            "torch._functorch.partitioners.estimate_runtime",
        ),
    ),
    Hook(
        id="dynamo-state",
        component="dynamo",
        summary="Collects the Python values that a model changes, and where the identity of tensors decides.",
        module="dynamo",
        patches=(
            "torch._dynamo.variables.BuiltinVariable._comparison_with_tensor",
            "torch._dynamo.variables.BuiltinVariable.call_id",
            "torch._dynamo.variables.TensorVariable.hash_impl",
            "torch._dynamo.variables.TensorVariable.get_python_hash",
            "torch._dynamo.variables.TensorVariable.tp_methods",
            "torch._dynamo.functional_export.dynamo_graph_capture_for_export",
        ),
    ),
    Hook(
        id="fake-runs",
        component="fake_tensor",
        summary="Runs the model on fake tensors, and notes what it calls.",
        module="fake_run",
        patches=(
            "torch._subclasses.fake_tensor.FakeTensorMode.dispatch",
            "torch.nn.Module.__setattr__",
            "torch._dynamo.tensor_version_op._unsafe_set_version_counter",
        ),
    ),
    Hook(
        id="fake-asserted-arguments",
        component="fake_tensor",
        summary="Turns checks of argument values in torch's own functions into assertions of the graph.",
        module="api.asserted",
        patches=("torch.Tensor.__bool__", "torch._subclasses.functional_tensor.FunctionalTensor.__bool__"),
    ),
    Hook(
        id="aot-own-gradients",
        component="aot_autograd",
        summary="Follows or refuses gradients that a model computes itself (`torch.autograd.grad`, `backward`).",
        module="api.own_gradients",
        patches=("torch.autograd._engine_run_backward",),
    ),
    Hook(
        id="aot-module-attributes",
        component="aot_autograd",
        summary="Records which attributes of modules a model reads and changes while it runs.",
        module="api.module_attributes",
        patches=("torch.nn.Module.__getattribute__", "torch.nn.Module.__setattr__", "torch.nn.Module.training"),
    ),
    Hook(
        id="aot-unmoved-modules",
        component="aot_autograd",
        summary="Skips `module.to()` and the like in a model that need not move or convert anything.",
        module="api.moves",
        patches=tuple(f"torch.nn.Module.{name}" for name in ("to", "cpu", "float", "double", "half", "bfloat16")),
    ),
    Hook(
        id="aot-inference-mode",
        component="aot_autograd",
        summary="Traces `torch.inference_mode` inside a model as `torch.no_grad`: its tensors cannot be traced.",
        module="api.inference",
        patches=(
            "torch.autograd.grad_mode.inference_mode.__enter__",
            "torch.autograd.grad_mode.inference_mode.__exit__",
        ),
    ),
    Hook(
        id="aot-dirty-arguments",
        component="aot_autograd",
        summary="Refuses an `autograd.Function` that marks an argument of the model as dirty.",
        module="refusals.dirty_arguments",
        patches=("torch.autograd.function.FunctionCtx.mark_dirty",),
    ),
    Hook(
        id="aot-undefined-gradients",
        component="aot_autograd",
        summary="Refuses an `autograd.Function` that takes None in place of undefined gradients.",
        module="refusals.undefined_gradients",
        patches=("torch.autograd.function.FunctionCtx.set_materialize_grads",),
    ),
    Hook(
        id="aot-lost-gradients",
        component="aot_autograd",
        summary="Refuses what takes part of a model out of the traced backward: hooks, `saved_tensors_hooks`, transforms.",
        module="refusals.lost_gradients",
        patches=(
            "torch.autograd.graph.saved_tensors_hooks.__enter__",
            "torch._ops.HigherOrderOperator.__call__",
            "torch.Tensor.register_hook",
            "torch.Tensor.register_post_accumulate_grad_hook",
            "torch.autograd.function.FunctionMeta.__getattribute__",
            "torch.autograd.function.custom_function_call",
        ),
    ),
    Hook(
        id="dynamo-changes",
        component="dynamo",
        summary="Notes the Python values that a model reads and changes.",
        module="refusals.changes",
        patches=(
            "torch._dynamo.output_graph.OutputGraph.get_replayed_side_effect_source_refs",
            "torch._dynamo.output_graph.OutputGraph.cleanup",
        ),
    ),
    Hook(
        id="dynamo-random-numbers",
        component="dynamo",
        summary="Refuses numbers of Python's `random`, and uses of the default generator's state.",
        module="randomness",
        patches=(
            "torch._dynamo.variables.user_defined.RandomValueSource",
            "torch.random.default_generator",
            "torch._higher_order_ops.wrap.TagActivationCheckpoint.__call__",
        ),
    ),
    Hook(
        id="aot-checkpoints",
        component="aot_autograd",
        summary="Traces regions of `torch.utils.checkpoint` so that the backward computes them again.",
        module="api.checkpoint",
        patches=(
            "torch.utils.checkpoint._checkpoint_without_reentrant_generator",
            "torch.utils.checkpoint._checkpoint_without_reentrant_generator_impl",
            "torch.utils.checkpoint.CheckpointFunction",
            "torch.fx.traceback.current_meta",
        ),
    ),
    Hook(
        id="shapes-questions",
        component="symbolic_shapes",
        summary="Answers questions about sizes and truth values while a model is traced, and notes them.",
        module="api.shape_env",
        patches=("torch.SymBool.__bool__", "torch.SymFloat.__bool__"),
    ),
    Hook(
        id="fake-constants",
        component="fake_tensor",
        summary="Reads the values of constants of the model, and refuses truth values of assertions.",
        module="api.constants",
        patches=("torch._subclasses.functional_tensor.FunctionalTensor.tolist",),
    ),
)
