"""All private torch APIs that the compiler uses, and nothing else, with one module for each part of
torch.

Tried on: torch 2.13.0 (everything), 2.9.0 (portable bundles). Each function says what it wraps. A
new torch release can therefore be checked by reading this package alone.
"""

from __future__ import annotations

# ruff: noqa: E402 - what follows needs a torch that has the names that it imports.
from .fixes.gate import check_imports

check_imports()

from torch._functorch._aot_autograd import descriptors as desc
from torch._functorch._aot_autograd.schemas import MutationType, OutputType, ViewAndMutationMeta
from torch._higher_order_ops.effects import with_effects
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._sympy.numbers import int_oo

from .aot_autograd import (
    CALL_ON_COPIES,
    AliasedOutputsError,
    Decompositions,
    Joint,
    export_joint,
    has_effect,
    participates_in_backward,
    tree_children,
)
from .api.fake_tensors import (
    Bounds,
    DynamicDims,
    blank_like,
    example_like,
    fake_inputs_of,
    fake_mode_of,
    fake_mode_with_shapes,
    fake_tensor,
    free_sizes,
    hint,
    hint_of,
    is_nested_size,
    is_plain_tensor,
    is_varying_integer,
    is_wrapper_subclass,
    marked_dynamic,
    real_tensor,
    stored_elements,
    symbols_in,
    symbols_of,
    varying_integer,
)
from .api.lines import recorded_lines
from .api.messages import own_warnings, quiet_torch_logs
from .api.own_gradients import OwnGradientError, traced_own_gradients
from .api.shape_env import SIZE_FUNCTIONS, Symbols, allow_one, depends_on_data, divided, modulo, symbolic_truths
from .api.writes import may_move_versions
from .call_library import SOURCE as CALL_LIBRARY_SOURCE
from .call_library import call_library_fingerprint, compile_call_library
from .dynamo import COMPARES, SIDE_EFFECTS, capture_with_dynamo, dynamo_contexts
from .events import mark_origins, origins_in
from .fake_run import (
    ASSIGNS_STATE,
    FakeRun,
    OperatorCall,
    SetsRequiresGradError,
    SideEffectError,
    VersionedWrites,
    is_compiling,
    kept_state_changes,
    run_on_fake_tensors,
    suspended_while_compiling,
)
from .fixes.aot_autograd.overlaps import OverlapError
from .fixes.applying import apply_fixes, fix_table, record_of_fixes
from .fixes.fake_tensor.strides import decomposed_like_kernels
from .fixes.gate import check_torch
from .inductor import (
    LoweringError,
    OutputLayout,
    can_name_instruction_set,
    inductor_decompositions,
    lower_with_aoti,
    with_stride_order,
    x86_vector_bits,
)
from .partitioner import Split, is_plain_call, partition, renumber_calls, split_regions
from .refusals.changes import refuse_changes
from .refusals.dirty_arguments import DirtyArgumentError
from .refusals.gradient_writes import GradientWriteError
from .refusals.lost_gradients import LostGradientError, kept_gradients, plain_saving
from .refusals.undefined_gradients import UndefinedGradientError
from .toolchain import Library, imports_from_torch, inductor_fingerprint

TRIED_ON = ("2.13.0", "2.9.0")

__all__ = [
    "ASSIGNS_STATE",
    "CALL_LIBRARY_SOURCE",
    "CALL_ON_COPIES",
    "COMPARES",
    "SIDE_EFFECTS",
    "SIZE_FUNCTIONS",
    "TRIED_ON",
    "AliasedOutputsError",
    "Bounds",
    "Decompositions",
    "DirtyArgumentError",
    "DynamicDims",
    "FakeRun",
    "FakeTensorMode",
    "GradientWriteError",
    "Joint",
    "Library",
    "LostGradientError",
    "LoweringError",
    "MutationType",
    "OperatorCall",
    "OutputLayout",
    "OutputType",
    "OverlapError",
    "OwnGradientError",
    "SetsRequiresGradError",
    "ShapeEnv",
    "SideEffectError",
    "Split",
    "StorageWeakRef",
    "Symbols",
    "UndefinedGradientError",
    "VersionedWrites",
    "ViewAndMutationMeta",
    "allow_one",
    "apply_fixes",
    "blank_like",
    "call_library_fingerprint",
    "can_name_instruction_set",
    "capture_with_dynamo",
    "check_torch",
    "compile_call_library",
    "decomposed_like_kernels",
    "depends_on_data",
    "desc",
    "divided",
    "dynamo_contexts",
    "example_like",
    "export_joint",
    "fake_inputs_of",
    "fake_mode_of",
    "fake_mode_with_shapes",
    "fake_tensor",
    "fix_table",
    "free_sizes",
    "has_effect",
    "hint",
    "hint_of",
    "imports_from_torch",
    "inductor_decompositions",
    "inductor_fingerprint",
    "int_oo",
    "is_compiling",
    "is_nested_size",
    "is_plain_call",
    "is_plain_tensor",
    "is_varying_integer",
    "is_wrapper_subclass",
    "kept_gradients",
    "kept_state_changes",
    "lower_with_aoti",
    "mark_origins",
    "marked_dynamic",
    "may_move_versions",
    "modulo",
    "origins_in",
    "own_warnings",
    "participates_in_backward",
    "partition",
    "plain_saving",
    "quiet_torch_logs",
    "real_tensor",
    "record_of_fixes",
    "recorded_lines",
    "refuse_changes",
    "renumber_calls",
    "run_on_fake_tensors",
    "split_regions",
    "statically_known_true",
    "stored_elements",
    "suspended_while_compiling",
    "symbolic_truths",
    "symbols_in",
    "symbols_of",
    "traced_own_gradients",
    "tree_children",
    "varying_integer",
    "with_effects",
    "with_stride_order",
    "x86_vector_bits",
]
