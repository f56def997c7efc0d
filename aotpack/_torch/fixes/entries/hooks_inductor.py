"""Entries for hooks: private names of Inductor that a build replaces to record or refuse something."""

from __future__ import annotations

from ..register import Hook

_CPP = "torch._inductor.codegen.cpp"
_EAGER_KERNELS = (
    *(f"{name}_backward" for name in ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "avg_pool2d", "avg_pool3d")),
    *("adaptive_max_pool2d", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward", "erfinv", "nextafter"),
    *(f"max_pool{n}d_with_indices_backward" for n in (2, 3)),
)
_SMOOTH = ("bilinear2d", "bicubic2d", "trilinear3d")

_ASKED_OF_A_GPU = ("get_device_properties", "current_device", "device_count", "synchronize", "is_bf16_supported")
_ASKED_OF_ITS_INTERFACE = ("get_compute_capability", "is_available", "exchange_device", "maybe_exchange_device", "get_raw_stream")

HOOKS = (
    Hook(
        id="inductor-graph-lowering",
        component="inductor",
        summary="Names inputs that may be freed, keeps strides that a user sees, and records how each output is written.",
        module="inductor.decompositions",
        patches=(
            "torch._inductor.graph.GraphLowering.placeholder",
            "torch._inductor.graph.GraphLowering.run_node",
            "torch._inductor.graph.GraphLowering.call_function",
            "torch._inductor.graph.GraphLowering.find_nodes_prefer_channels_last",
            "torch._inductor.graph.GraphLowering.codegen_with_cpp_wrapper",
            "torch._inductor.compile_fx.compile_fx_aot",
            "torch._inductor.compile_fx.compile_fx_inner",
            "torch._inductor.compile_fx._aoti_flatten_inputs",
            "torch._inductor.compile_fx.GraphLowering",
        ),
    ),
    Hook(
        id="inductor-second-trace",
        component="inductor",
        summary="Copies a graph that AOTAutograd has traced, where AOTInductor would trace it again.",
        module="inductor.second_trace",
        patches=("torch._inductor.compile_fx.aot_export_module",),
    ),
    Hook(
        id="inductor-rows",
        component="inductor",
        summary="Refuses negative indices of `index_select`, `index_add` and `index_copy`, which eager refuses, too.",
        module="inductor.codegen.negative_indices",
        patches=("torch._inductor.lowering.index_output_size_and_inner_fn",),
    ),
    Hook(
        id="inductor-events",
        component="inductor",
        summary="Puts an event of torch's profiler around each kernel, with the modules that the kernel comes from.",
        module="inductor.codegen.events",
        patches=(f"{_CPP}.KernelGroup.call_kernel", "torch._inductor.scheduler.Scheduler.codegen_extern_call"),
    ),
    Hook(
        id="inductor-plain-additions",
        component="inductor",
        summary="Generates additions by index without atomic instructions, for up to four threads.",
        module="inductor.codegen.scatter_add",
        patches=(
            f"{_CPP}.CppKernel.store",
            f"{_CPP}.CppVecKernel.store",
            f"{_CPP}.CppTile2DKernel.store",
            f"{_CPP}.CppKernelProxy.codegen_loops_impl",
        ),
    ),
    Hook(
        id="inductor-convolution-gradients",
        component="inductor",
        summary="Lays out arguments of gradients of convolutions as their kernel reads them.",
        module="inductor.layouts",
        patches=("torch._inductor.lowering.lowerings[aten.convolution_backward.default]",),
    ),
    Hook(
        id="inductor-eager-kernels",
        component="inductor",
        summary="Calls eager's kernels where they are faster than generated code.",
        module="tracing.eager_kernels",
        patches=(
            *(f"torch._inductor.lowering.lowerings[aten.{name}.default]" for name in _EAGER_KERNELS),
            *(f"torch.ops.aten.upsample_{name}.{kind}" for name in _SMOOTH for kind in ("default", "vec")),
        ),
    ),
    Hook(
        id="inductor-costly-broadcasts",
        component="inductor",
        summary="Stores costly operands of a broadcast instead of computing them for each element.",
        module="inductor.codegen.broadcasts",
        patches=("torch._inductor.ir.StorageBox.mark_reuse",),
    ),
    Hook(
        id="inductor-parallel-loops",
        component="inductor",
        summary="Runs loops of few elements, and loops within others, on one thread.",
        module="inductor.codegen.parallel_loops",
        patches=tuple(
            f"{_CPP}.{f}" for f in ("CppKernel.decide_parallel_depth", "LoopNest.max_parallel_depth", "WorkSharing.parallel")
        ),
    ),
    Hook(
        id="inductor-early-frees",
        component="inductor",
        summary="Frees large buffers after the loop that reads them last.",
        module="inductor.codegen.early_frees",
        patches=(f"{_CPP}.CppScheduling.ready_to_flush", "torch._inductor.codegen.wrapper.AllocateLine.should_reuse_buffer"),
    ),
    Hook(
        id="inductor-memory-order",
        component="inductor",
        summary="Lets Inductor choose from orders of kernels in which memory is freed early, too.",
        module="inductor.codegen.memory_order",
        patches=("torch._inductor.memory.reorder_for_peak_memory",),
    ),
    Hook(
        id="inductor-tool-chain",
        component="inductor",
        summary="Runs the C++ compiler's commands of several graphs side by side, with flags and headers of our own.",
        module="inductor.toolchain.commands",
        patches=(
            "torch._inductor.cpp_builder.run_compile_cmd",
            "torch._inductor.cpp_builder._get_optimization_cflags",
            *(f"torch._inductor.codecache.AotCodeCompiler{name}" for name in ("", ".compile")),
            *(f"torch._inductor.codecache._HEADER{name}_DIR" for name in ("", "_LOCK")),
            "torch._inductor.codegen.cpp_wrapper_cpu.CppWrapperCpu.generate_input_output_runtime_checks",
            *(f"torch._inductor.cpu_vec_isa.{name}.__bool__" for name in ("VecISA", "VecAVX512")),
            *(f"torch._inductor.cpu_vec_isa.{name}" for name in ("VecISA.check_build", "valid_vec_isa_list")),
        ),
    ),
    Hook(
        id="inductor-cuda-without-device",
        component="inductor",
        summary="Answers what Inductor asks of a GPU, so that a build for GPUs needs none.",
        module="inductor.cuda.without_device",
        patches=(
            *(f"torch.cuda.{name}" for name in (*_ASKED_OF_A_GPU, "get_device_capability", "mem_get_info", "_lazy_init")),
            *(f"torch._dynamo.device_interface.CudaInterface.{name}" for name in (*_ASKED_OF_A_GPU, *_ASKED_OF_ITS_INTERFACE)),
            "torch._subclasses.fake_tensor.init_gpu_context",
            "torch._inductor.runtime.triton_helpers.set_driver_to_gpu",
            "torch._inductor.runtime.triton_heuristics.CachingAutotuner.precompile",
            "torch._inductor.fx_passes.joint_graph.lazy_init",
            "torch._inductor.fx_passes.post_grad.lazy_init",
            "torch._inductor.codecache.get_device_information",
            "torch.utils.cpp_extension.CUDA_HOME",
            "torch.Tensor.__invert__",
            "torch.Tensor.copy_",
        ),
    ),
    Hook(
        id="inductor-cuda-kernels",
        component="inductor",
        summary="Compiles each kernel for several architectures, where Inductor would run it to choose its configuration.",
        module="inductor.cuda.kernels",
        patches=("torch._inductor.codegen.wrapper.PythonWrapperCodegen.generate_and_run_autotune_block",),
    ),
)
