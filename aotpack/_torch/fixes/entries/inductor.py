"""Entries for Inductor, applied only for targets that Inductor compiles."""

from __future__ import annotations

from functools import partial

from ..register import Fix, Hook

_fix = partial(Fix, component="inductor")
_CPP = "torch._inductor.codegen.cpp"
_LOWERING = "torch._inductor.lowering"
_LOWERINGS = f"{_LOWERING}.lowerings"

FIXES = (
    _fix(
        id="inductor-view-of-whole-result",
        severity="strides",
        summary="A result that is a view of all of another result (`return y, y[:]`) is returned as the same tensor object.",
        apply="fixes.inductor.results:return_views_separately",
        takes=("saved",),
        patches=(
            "torch._inductor.codegen.cpp_wrapper_cpu.CppWrapperCpu.get_output_refs",
            "torch._inductor.codegen.cpp_wrapper_cpu.CppWrapperCpu.generate_return",
        ),
    ),
    _fix(
        id="inductor-results-share-memory",
        severity="strides",
        summary="What changes no numbers is dropped: `x * torch.ones(3)` and `torch.cat(x.split(2))` return the memory of `x`.",
        apply="fixes.inductor.results:copy_shared_results",
        takes=("module", "saved"),
        patches=("torch._inductor.graph.GraphLowering.finalize", "torch._inductor.ir.ExternKernel.copy_input"),
    ),
    _fix(
        id="inductor-one-thread-regions",
        severity="wrong-values",
        summary="With `cpp.dynamic_threads`, code compiled on one thread divides a mean once for each thread that runs it.",
        apply="fixes.inductor.loops:write_for_several_threads",
        patches=("torch._inductor.utils.parallel_num_threads", f"{_CPP}.parallel_num_threads"),
    ),
    _fix(
        id="inductor-tile-index-twice",
        severity="memory-safety",
        summary="In the gradient of `x[..., [i], :]` beside a transposed use, the position in a tile is counted twice.",
        apply="fixes.inductor.loops:index_tiles_once",
        patches=(f"{_CPP}.CppTile2DKernel.transform_indexing", f"{_CPP}.CppTile2DKernel.inner_itervar"),
    ),
    _fix(
        id="inductor-tile-tails",
        severity="memory-safety",
        summary="What is left over beside whole tiles is written as a whole vector: other results, or the heap, are overwritten.",
        apply="fixes.inductor.loops:write_tile_tails",
        patches=(f"{_CPP}.CppKernelProxy.aggregate_reduction_buffers",),
    ),
    _fix(
        id="inductor-negative-indices",
        severity="memory-safety",
        summary="A multiple of the modulus is dropped from an index that is negative without it: memory before a tensor is read.",
        apply="fixes.inductor.indices:keep_signs_of_indices",
        patches=("torch.utils._sympy.functions.ModularIndexing.eval", "torch.utils._sympy.functions.safe_gcd"),
    ),
    _fix(
        id="inductor-abs-of-bytes",
        severity="wrong-values",
        summary="`abs` of an `int8` is computed as an `int` of C++: `x.abs().int()` of -128 is 128, and eager gives -128.",
        apply="fixes.inductor.numbers:keep_bytes",
        patches=(f"{_CPP}.CppOverrides.abs",),
    ),
    _fix(
        id="inductor-casts-round",
        severity="wrong-values",
        summary="`x.bfloat16().float()` is `x`: the cast is computed in float32, and rounded only where it is stored.",
        apply="fixes.inductor.numbers:round_casts",
        patches=(f"{_LOWERINGS}[prims.convert_element_type.default]", f"{_CPP}.CppKernel.cache_dtype_convert"),
    ),
    _fix(
        id="inductor-numbers-as-float",
        severity="wrong-values",
        summary="A number read off a `float64` tensor (`x.sum().item()`) is passed to kernels as `float`.",
        apply="fixes.inductor.numbers:pass_doubles",
        patches=("torch._inductor.codegen.common.KernelArgs.cpp_argdefs",),
    ),
    _fix(
        id="inductor-adaptive-pool-sizes",
        severity="wrong-values",
        summary="`adaptive_avg_pool2d` of sizes that vary is compiled for the example's sizes.",
        apply="fixes.inductor.sizes:call_adaptive_averages",
        patches=(
            f"{_LOWERINGS}[aten._adaptive_avg_pool2d.default]",
            "torch._inductor.lowering.fallback_adaptive_avg_pool2d",
        ),
    ),
    _fix(
        id="inductor-convolution-gradient-sizes",
        severity="refuses",
        summary="Gradients of convolutions fix sizes that vary.",
        apply="fixes.inductor.sizes:keep_sizes_of_convolutions",
        patches=(
            f"{_LOWERINGS}[aten.convolution_backward.default]",
            "torch._inductor.sizevars.SizeVarAllocator.guard_int_seq",
            "torch._inductor.sizevars.SizeVarAllocator.guarding_hint_or_throw",
        ),
    ),
    _fix(
        id="inductor-glu-sizes",
        severity="refuses",
        summary="`glu` fixes the size that it halves.",
        apply="fixes.inductor.sizes:keep_sizes_of_glu",
        patches=(f"{_LOWERINGS}[aten.glu.default]", "torch._inductor.lowering.slice_"),
    ),
    _fix(
        id="inductor-stride-order-guards",
        severity="refuses",
        summary="The order of strides (`48`, `48 * s`) is asked for with a guard that refuses a size of 1.",
        apply="fixes.inductor.sizes:order_strides_without_guards",
        patches=("torch._inductor.ir.argsort_sym", "torch._inductor.ir.argsort"),
    ),
    _fix(
        id="inductor-overlap-guards",
        severity="refuses",
        summary="A write to a part of a tensor asks whether the part overlaps itself, with a guard that refuses a size of 1.",
        apply="fixes.inductor.sizes:find_overlaps_without_guards",
        patches=("torch._debug_has_internal_overlap",),
    ),
    _fix(
        id="inductor-floor-division",
        severity="wrong-values",
        summary="`a // b` of real numbers rounds the quotient first: `0.5 // 0.1` is 5, and eager gives 4.",
        apply="fixes.inductor.numbers:round_quotients_down",
        patches=(f"{_LOWERING}._div_rn", f"{_LOWERING}._floor_div_floating", f"{_LOWERING}.div_mode"),
    ),
    _fix(
        id="inductor-powers-of-a-number",
        severity="wrong-values",
        summary="`2 ** k` of integers is `float32` in AOTInductor's code, because numbers are passed to kernels as `double`.",
        apply="fixes.inductor.numbers:keep_type_of_powers",
        patches=("torch._inductor.lowering.fallback_pow_scalar", "torch._inductor.lowering.pow"),
    ),
    _fix(
        id="inductor-argmax-index-order",
        severity="wrong-values",
        summary="`argmax` over several dimensions of a tensor that is not contiguous counts indices in the order of the loops.",
        apply="fixes.inductor.indices:fix_argmax_index_order",
        patches=("torch._inductor.ir.Reduction.create",),
    ),
    _fix(
        id="inductor-atomic-add-one-element",
        severity="compile-error",
        summary="`index_add` of a vector into a tensor of one element does not compile (`AssertionError`).",
        apply="fixes.inductor.loops:add_to_one_element",
        patches=(f"{_CPP}.CppVecKernel.store", f"{_CPP}.CppVecOverrides.index_expr"),
    ),
    _fix(
        id="inductor-symbolic-min-max",
        severity="compile-error",
        summary="The smaller of two sizes that vary is guarded on, or raises: gradients of `x[-3:]` do not compile.",
        apply="fixes.inductor.indices:fix_symbolic_min_max",
        patches=(
            "torch._inductor.sizevars.SizeVarAllocator.evaluate_min",
            "torch._inductor.sizevars.SizeVarAllocator.evaluate_max",
        ),
    ),
    _fix(
        id="inductor-average-pool-gradients",
        severity="wrong-values",
        summary="Gradients of `avg_pool2d(ceil_mode=True)` are divided by the size of the whole window, even if cut off.",
        apply="fixes.inductor.numbers:divide_pools",
        patches=(
            f"{_LOWERINGS}[aten.avg_pool2d_backward.default]",
            f"{_LOWERINGS}[aten.avg_pool3d_backward.default]",
            "torch._inductor.lowering.fallback_avg_pool2d_backward",
            "torch._inductor.lowering.fallback_avg_pool3d_backward",
        ),
    ),
    _fix(
        id="inductor-write-into-expanded",
        severity="wrong-values",
        summary="`index_add` into an expanded tensor writes into the one row that all of them share.",
        apply="fixes.inductor.writes:copy_expanded",
        patches=("torch._inductor.fx_passes.reinplace.reinplace_inplaceable_ops_core",),
    ),
    _fix(
        id="inductor-write-order-after-fusion",
        severity="wrong-values",
        summary="Loops that are made anew to be fused forget which write they read, and may run before it.",
        apply="fixes.inductor.writes:fix_write_order",
        patches=("torch._inductor.scheduler.SchedulerNode.recompute_size_and_body",),
    ),
    _fix(
        id="inductor-mutate-in-place",
        severity="wrong-values",
        summary="`mutate_to` rebinds the storage box: views taken earlier but generated later read the new values.",
        apply="fixes.inductor.writes:write_in_place",
        patches=("torch._inductor.lowering.mutate_to",),
    ),
    _fix(
        id="inductor-write-to-concatenated",
        severity="wrong-values",
        summary="A concatenated tensor is a view of the concatenation, so a write to it changes the concatenation too.",
        apply="fixes.inductor.writes:copy_written_concatenations",
        patches=("torch._inductor.ir.ConcatKernel.create",),
    ),
    _fix(
        id="inductor-defaults-of-kernels",
        severity="compile-error",
        summary="AOTInductor passes the default `alpha` of `x - y` of complex numbers, and does not record it.",
        apply="fixes.inductor.calls:record_defaults",
        patches=(
            "torch._inductor.ir.FallbackKernel.export_extern_kernel_node",
            "torch._inductor.ir.ExternKernel.get_kwargs_value",
        ),
    ),
    _fix(
        id="inductor-numbers-beside-complex",
        severity="wrong-values",
        summary="`x.sum() * 3.5` of a complex `x` is `complex128` in AOTInductor's code; `x * 1j` does not compile.",
        apply="fixes.inductor.graphs:pass_complex_numbers_as_tensors",
        kind="graph",
    ),
    _fix(
        id="inductor-full-of-complex",
        severity="compile-error",
        summary="AOTInductor cannot write a tensor filled with one complex number, as the gradient of `fft.rfft(x).abs()` has.",
        apply="fixes.inductor.graphs:split_complex_numbers",
        kind="graph",
    ),
    _fix(
        id="inductor-extremes-of-bytes",
        severity="wrong-values",
        summary="`amin` of `int8` or `uint8` also reduces the empty lanes of a vector: 0 for the least of 90 positive numbers.",
        apply="fixes.inductor.graphs:reduce_bytes_as_numbers",
        kind="graph",
    ),
    _fix(
        id="inductor-extremes-computed-twice",
        severity="wrong-values",
        summary="What `amin` is of is computed twice with other last bits, so no element is the minimum, and no gradient flows.",
        apply="fixes.inductor.graphs:compute_extremes_once",
        patches=("torch._inductor.graph.GraphLowering.run_node",),
    ),
    _fix(
        id="inductor-checks-end-the-process",
        severity="memory-safety",
        summary="A check of a value that fails in a parallel loop ends the process, without the operator or the value.",
        apply="fixes.inductor.checks:throw_after_regions",
        patches=(
            "torch._inductor.codegen.common.Kernel.indirect_assert",
            f"{_CPP}.CppVecKernel.indirect_assert",
            f"{_CPP}.CppKernel.device_assert_async",
            f"{_CPP}.CppKernelProxy.gen_body",
            f"{_CPP}.KernelGroup.finalize_kernel",
            f"{_CPP}.KernelGroup.codegen_group",
        ),
    ),
    _fix(
        id="inductor-integer-division-by-zero",
        severity="memory-safety",
        summary="A division of integers by zero, rounded towards zero, ends the process.",
        apply="fixes.inductor.checks:check_divisors",
        patches=(f"{_CPP}.CppOverrides.truncdiv", f"{_CPP}.CppVecOverrides.truncdiv"),
    ),
    _fix(
        id="inductor-assertion-messages",
        severity="compile-error",
        summary="The message of a scalar's assertion is written into C++ as it is: one with quotes does not compile.",
        apply="fixes.inductor.checks:escape_messages",
        patches=("torch._inductor.ir.AssertScalar.codegen",),
    ),
    _fix(
        id="inductor-strides-of-kernels",
        severity="wrong-values",
        summary="AOTInductor reads a kernel's result by the strides of its fake kernel, and never compares them.",
        apply="fixes.inductor.kernel_layouts:check_kernel_strides",
        patches=(
            "torch._inductor.ir.ExternKernel.codegen_size_asserts",
            "torch._inductor.ir.FallbackKernel.codegen",
            "torch._inductor.codegen.cpp_wrapper_cpu.CppWrapperCpu._codegen_assert_size_stride",
        ),
    ),
    _fix(
        id="inductor-draws-in-patterns",
        severity="wrong-values",
        summary="Patterns merge and move operators that draw random numbers.",
        apply="fixes.inductor.random_operators:exclude_draws_from_patterns",
        patches=("torch._inductor.pattern_matcher.is_match",),
    ),
    _fix(
        id="inductor-order-of-draws",
        severity="wrong-values",
        summary="Operators that draw random numbers run in another order, or not at all where nobody uses their result.",
        apply="fixes.inductor.random_operators:keep_draws_in_order",
        takes=("module",),
        patches=("torch._inductor.comms.decide_global_ordering_of_comms",),
    ),
    _fix(
        id="inductor-bernoulli-draws",
        severity="wrong-values",
        summary="`bernoulli` draws other numbers than its operator, even with `fallback_random`.",
        apply="fixes.inductor.random_operators:call_bernoulli_kernel",
        patches=("torch._inductor.decomposition.decompositions[aten.bernoulli.default]",),
    ),
)

HOOKS = (
    Hook(
        id="inductor-graph-lowering",
        component="inductor",
        summary="Names inputs that may be freed, keeps strides that a user sees, and records how each output is written.",
        module="inductor",
        patches=(
            "torch._inductor.graph.GraphLowering.placeholder",
            "torch._inductor.graph.GraphLowering.codegen_with_cpp_wrapper",
            "torch._inductor.compile_fx.compile_fx_aot",
            "torch._inductor.compile_fx.compile_fx_inner",
            "torch._inductor.compile_fx._aoti_flatten_inputs",
        ),
    ),
    Hook(
        id="inductor-tool-chain",
        component="inductor",
        summary="Runs the C++ compiler's commands of several graphs side by side, with flags and headers of our own.",
        module="toolchain",
        patches=(
            "torch._inductor.cpp_builder.run_compile_cmd",
            "torch._inductor.cpp_builder._get_optimization_cflags",
            "torch._inductor.codecache.AotCodeCompiler.compile",
            "torch._inductor.codegen.cpp_wrapper_cpu.CppWrapperCpu.generate_input_output_runtime_checks",
            "torch._inductor.cpu_vec_isa.VecISA.check_build",
        ),
    ),
)
