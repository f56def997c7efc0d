"""Entries for hooks: private names of torch that a trace replaces to record or refuse something."""

from __future__ import annotations

from ..register import Hook

_AOT = "torch._functorch._aot_autograd"
_RULES = "torch._decomp.decompositions"
HOOKS = (
    Hook(
        id="aot-export",
        component="aot_autograd",
        summary="Traces the joint graph, with what the model returns before it is flattened.",
        module="tracing.aot_autograd",
        patches=(
            *(
                f"torch._functorch.aot_autograd.{name}"
                for name in ("create_tree_flattened_fn", "aot_export_joint_with_descriptors")
            ),
            f"{_AOT}.graph_compile.run_joint_graph_passes_on_hops",
        ),
    ),
    Hook(
        id="aot-lines",
        component="aot_autograd",
        summary="Records the user's lines behind the nodes of a joint graph.",
        module="api.node_lines",
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
        patches=("torch.autograd.function.BackwardCFunction.apply", "torch.autograd.grad", "torch.Tensor.register_hook"),
    ),
    Hook(
        id="partitioner-budget",
        component="partitioner",
        summary="Chooses what is saved within a memory budget.",
        module="tracing.memory_budget",
        patches=(
            "torch._functorch._activation_checkpointing.knapsack.dp_knapsack",
            "torch._functorch.partitioners.estimate_runtime",
        ),
    ),
    Hook(
        id="partitioner-rows",
        component="partitioner",
        summary="Computes `index_select` again in a backward, as torch does with its decomposition.",
        module="api.negative_indices",
        patches=("torch._functorch.partitioners.get_default_op_list",),
    ),
    Hook(
        id="dynamo-state",
        component="dynamo",
        summary="Collects the Python values that a model changes, and where the identity of tensors decides.",
        module="tracing.dynamo",
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
        module="tracing.fake_run",
        patches=(
            "torch._subclasses.fake_tensor.FakeTensorMode.dispatch",
            "torch.nn.Module.__setattr__",
            "torch._dynamo.tensor_version_op._unsafe_set_version_counter",
        ),
    ),
    Hook(
        id="fake-storage-resizes",
        component="fake_tensor",
        summary="Refuses a model that resizes the storage of a tensor, where a trace would lose it.",
        module="refusals.storage_resizes",
        patches=("torch.UntypedStorage.resize_",),
    ),
    Hook(
        id="fake-asserted-arguments",
        component="fake_tensor",
        summary="Turns checks of argument values in torch's own functions into assertions of the graph.",
        module="api.asserted",
        patches=("torch.Tensor.__bool__", "torch._subclasses.functional_tensor.FunctionalTensor.__bool__"),
    ),
    Hook(
        id="fake-asserted-distributions",
        component="fake_tensor",
        summary="Turns what `torch.distributions` checks into assertions of the graph.",
        module="api.distributions",
        patches=(
            "torch.distributions.distribution.Distribution.__init__",
            "torch.distributions.distribution.Distribution._validate_sample",
            "torch.distributions.geometric.Geometric.__init__",
            *(
                f"torch.distributions.constraints._{name}.check"
                for name in ("Symmetric", "PositiveSemidefinite", "PositiveDefinite")
            ),
        ),
    ),
    Hook(
        id="fake-causal-masks",
        component="fake_tensor",
        summary="Traces transformers with masks of unknown values, without the comparison with a causal mask.",
        module="api.causal_masks",
        patches=("torch.nn.modules.transformer._detect_is_causal_mask",),
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
        patches=("torch.autograd.grad_mode.inference_mode.__enter__", "torch.autograd.grad_mode.inference_mode.__exit__"),
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
        id="dynamo-without-gpus",
        component="dynamo",
        summary="Keeps a build from starting CUDA, as a trace does that saves the state of random numbers.",
        module="api.gpus",
        patches=("torch.cuda.is_available",),
    ),
    Hook(
        id="dynamo-flags",
        component="dynamo",
        summary="Tells other threads than the build's that torch neither compiles, exports nor traces.",
        module="api.compiling_flags",
        patches=(
            *(f"torch.compiler.{name}" for name in ("is_compiling", "is_exporting")),
            *(f"torch.fx._symbolic_trace.{name}" for name in ("is_fx_tracing", "is_fx_symbolic_tracing")),
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
        module="tracing.randomness",
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
            *(f"torch.utils.checkpoint._checkpoint_without_reentrant_generator{name}" for name in ("", "_impl")),
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
        id="shapes-texts",
        component="symbolic_shapes",
        summary="Makes a size constant of which the model makes text.",
        module="api.size_texts",
        patches=("torch.SymInt.__repr__", "torch.SymFloat.__repr__", "torch.SymBool.__repr__"),
    ),
    Hook(
        id="shapes-fixed-sizes",
        component="symbolic_shapes",
        summary="Notes the line of the model that makes a size constant.",
        module="api.fixed_sizes",
        patches=("torch.fx.experimental.symbolic_shapes.ShapeEnv._set_replacement",),
    ),
    Hook(
        id="fake-constants",
        component="fake_tensor",
        summary="Reads the values of constants of the model, and refuses truth values of assertions.",
        module="api.constants",
        patches=("torch._subclasses.functional_tensor.FunctionalTensor.tolist",),
    ),
    Hook(
        id="decomposition-recurrent-scans",
        component="decomposition",
        summary="Traces recurrent layers as loops, and LSTMs for `cpu` alone as oneDNN's kernel.",
        module="api.recurrent",
        patches=(
            *(f"{_RULES}.{n}{end}" for end in ("", "_data") for n in ("rnn_cell", "one_layer_rnn", "gru_cell", "one_layer_lstm")),
            f"{_RULES}.select_one_layer_lstm_function",
        ),
    ),
    Hook(
        id="decomposition-packed-sequences",
        component="decomposition",
        summary="Traces packed sequences by indices that the graph computes from the lengths.",
        module="api.packed",
        patches=(
            "torch._VF._pack_padded_sequence",
            "torch._VF._pad_packed_sequence",
            *(f"{_RULES}.{name}" for name in ("lstm_data_impl", "gru_impl_data", "rnn_tanh_data", "rnn_relu_data")),
            *(f"torch.nn.modules.rnn.{kind}.forward" for kind in ("RNN", "LSTM", "GRU")),
        ),
    ),
    Hook(
        id="decomposition-averages-of-batch-norm",
        component="decomposition",
        summary="Keeps the factor of `BatchNorm(momentum=None)` a tensor: eager reads it off as a Python number.",
        module="api.averages",
        patches=("torch.nn.modules.batchnorm._BatchNorm.forward", "torch.nn.modules.batchnorm.SyncBatchNorm.forward"),
    ),
    Hook(
        id="encoder-padding",
        component="decomposition",
        summary="Makes padded positions of a `TransformerEncoder` zero in inference, as eager's nested tensors do.",
        module="api.encoders",
        patches=("torch.nn.modules.transformer.TransformerEncoder.forward",),
    ),
    Hook(
        id="traced-optimizers",
        component="aot_autograd",
        summary="Traces the extremes of numbers that Adafactor reads from tensors, and steps for accelerators on the CPU.",
        module="api.traced_optimizers",
        patches=("torch.optim._adafactor.min", "torch.optim._adafactor.max", "torch.compiler.is_compiling"),
    ),
    Hook(
        id="fake-tensors-outside-modes",
        component="fake_tensor",
        summary="Makes fake tensors outside of function modes: a dozen modes would see some fifty reads of each parameter.",
        module="api.fake_tensors",
        patches=("torch._subclasses.fake_tensor.FakeTensorConverter.from_real_tensor",),
    ),
)
