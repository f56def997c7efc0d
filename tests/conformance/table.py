"""All cases; those a build refuses, with the message; those that are known to be wrong, with the diagnosis."""

from __future__ import annotations

from . import conformance_cases_autograd as autograd
from . import conformance_cases_identity as identity
from . import conformance_cases_mutation as mutation
from . import conformance_cases_outputs as outputs
from . import conformance_cases_shapes as shapes
from . import conformance_cases_state as state
from .harness import Case

CASES: list[Case] = [*mutation.CASES, *identity.CASES, *outputs.CASES, *autograd.CASES, *state.CASES, *shapes.CASES]

_NO_FRONT_END = "No front end could trace"

REFUSED: dict[str, str] = {
    # Eager's own backward raises as well.
    "input mutation: under no_grad, after use": "modified by an inplace operation",
    # torch's tracing: the infer graph is made from inputs that still require a gradient.
    "input mutation: through a view that is returned, non-leaf, without gradients": "view was created in no_grad mode",
    "input mutation: set_ to a new tensor": "set_ on a graph input",
    "input mutation: set_ to another input": "set_ on a graph input",
    "identity: same tensor twice, one mutated": "the same tensor is passed in two places",
    "identity: same non-leaf twice, one mutated": "the same tensor is passed in two places",
    "identity: aliasing inputs, both mutated, differentiable": _NO_FRONT_END,
    "outputs: a dtype": "torch.dtype",
    "outputs: a complex number": "complex",
    "outputs: sizes": "torch.Size",
    "outputs: dataclass that pytree does not know": "Unregistered",
    "outputs: namedtuple": "namedtuple",
    "outputs: torch.return_types": "return_types",
    "outputs: torch.return_types sort": "return_types",
    "BatchNorm counters, momentum None": "data-dependent",
    "shapes: a branch on data": "Data-dependent branching",
}
"""Case to a pattern of the build's message."""

_LAID_OUT = (
    "runtime/inputs.py _laid_out: a copy with the strides of the build takes the caller's place, also in the epilogue: "
    "what is written to it or returned of it is not the caller's"
)
_CONSTANT = "signature.py _inputs: KeyError, a constant argument's placeholder has no meta['val']"
_SYNTHETIC = "signature.py _drop_constant_inputs: a plain ValueError hides the refusal of aliased inputs"
_SAVED_MUTATED = (
    "partition.py: the partitioner saves a primal and recomputes AOTAutograd's protective clone of it in the backward, "
    "the epilogue then writes to the primal (torch.compile has the same fault)"
)
_FALLBACK = "capture.py: a later front end takes, and gets wrong, what an earlier one refused for its meaning"
_MISSING_TANGENT = (
    "runtime/autograd.py: zeros stand in for a missing tangent, so a gradient that no other tangent reaches is zeros, not None"
)
_REACHED = "runtime/autograd.py: every differentiable output requires grad as soon as any primal does, reached or not"
_UNBACKED = "a saved unbacked size: CorruptBundleError when the program is written, neither carried nor refused"
_NO_GRAD_VIEW = "signature.py: OutputAliasInfo.requires_grad_for_backward is not carried (torch.compile has the same fault)"
_IDENTITY_DROPOUT = (
    "dropout that does nothing returns its input itself in eager, a clone or an alias when traced (as torch.compile)"
)

XFAIL: dict[str, str] = {
    # Silently wrong.
    "shapes: other strides at call, mutated": _LAID_OUT,
    "shapes: other strides at call, returned": _LAID_OUT,
    "shapes: other strides at call, alias that view() cannot take": _LAID_OUT,
    "shapes: other strides at call": ("the result has the strides of the build's example, not those that follow from the call's"),
    "identity: duplicated at build, distinct at call": (
        "Dynamo merges equal example inputs; the pattern is neither recorded nor checked"
    ),
    "identity: the model compares its duplicated inputs, distinct at call": ("`x is y` is decided at build, not checked at call"),
    "identity: the model compares its distinct inputs, same at call": ("`x is y` is decided at build, not checked at call"),
    "buffer mutated: assigned anew": (
        "Dynamo's export drops the side effect with a warning only (non-strict export gets it right)"
    ),
    "state: a Python number that changes from call to call": ("Dynamo's export drops the side effect with a warning only"),
    "input mutation: .data assigned": _FALLBACK,
    "input mutation: data of a leaf that requires grad (eager raises)": _FALLBACK,
    "outputs: requires_grad_() of a detached input": _FALLBACK,
    "outputs: requires_grad_() on an input inside": _FALLBACK,
    "input mutation: storage resize_(0)": "inductor.resize_storage_bytes_ is dropped from the graph",
    "outputs: alias of input, same view twice": "each result is replayed on its own; eager's is one object",
    "outputs: views that change requires_grad, view under no_grad": _NO_GRAD_VIEW,
    "outputs: views that change requires_grad, view of the input under no_grad": _NO_GRAD_VIEW,
    "outputs: dataclass with None": "trees.py: fields that pytree left out because they are None are lost",
    "outputs: eval-mode dropout returns the input itself": _IDENTITY_DROPOUT,
    "RNG dropout: p=0": _IDENTITY_DROPOUT,
    "autograd: missing tangents, left only": _MISSING_TANGENT,
    "autograd: missing tangents, right only": _MISSING_TANGENT,
    "autograd: one output only, second": _MISSING_TANGENT,
    "autograd: one output only, third": _MISSING_TANGENT,
    "identity: gradient pattern at call: fewer, with a mutated non-leaf": _REACHED,
    "identity: gradient pattern at call: fewer, a result of each input": _REACHED,
    "autograd: enable_grad inside the model": ("the infer method is traced and run without gradients; the model turns them on"),
    "outputs: a detached input and a view of it": ("each result is replayed on its own from the input: `_base is` is lost"),
    "BatchNorm: version counters of the statistics": "copy_ moves them, eager's kernel does not (as torch.compile)",
    # An error where eager works, or another kind of error than ours.
    "input mutation: data of a non-leaf, mutated input in the backward": _SAVED_MUTATED,
    "input mutation: plain input becomes part of the graph": _SAVED_MUTATED,
    "input mutation: masked_fill_, non-leaf": _SAVED_MUTATED,
    "input mutation: through a view that is returned, non-leaf": _SAVED_MUTATED,
    "input mutation: two inputs of each other, non-leaf": _SAVED_MUTATED,
    "input mutation: resize_ larger": "runtime/epilogue.py: as_strided_ over a storage that has not grown",
    "outputs: alias of intermediate, base saved, in place afterwards": (
        "unsafe_view_alias: a view made inside the Function; torch un-views it"
    ),
    "outputs: complex/real views, view_as_real of the input": (
        "SEGFAULT at build: state.py add_constant reads a functional tensor"
    ),
    "outputs: a constant of the model": "signature.py _lift_constants runs after the outputs are collected",
    "identity: aliasing inputs, one mutated, overlapping": _SYNTHETIC,
    "identity: aliasing inputs, one mutated, base and view": _SYNTHETIC,
    "identity: aliasing inputs, one mutated, differentiable views": _SYNTHETIC,
    "identity: aliasing inputs, one mutated, differentiable base and view": _SYNTHETIC,
    "identity: aliasing inputs, both mutated": _SYNTHETIC,
    "identity: aliasing inputs by storage only, one mutated": _SYNTHETIC,
    "identity: aliasing inputs, mutated under no_grad": _SYNTHETIC,
    "identity: aliasing inputs, one mutated, disjoint": (
        "runtime/call.py _refuse_overlap: refuses the very pattern of the build"
    ),
    "identity: distinct at build, same storage but disjoint at call, one mutated": (
        "runtime/call.py _refuse_overlap compares storages, not ranges"
    ),
    "autograd: autocast at call, none at build, is refused without gradients": "the interpreter runs under the caller's autocast",
    "autograd: autocast at call, none at build, is refused": "the interpreter runs under the caller's autocast",
    "frozen parameters: unfrozen, but called without gradients": (
        "runtime/call.py _Expected.frozen also holds where no gradient is taken"
    ),
    "state: names that the loaded module uses itself": (
        "a build writes it, rule C2 of the loader then calls the bundle corrupt: must be refused at build, or allowed"
    ),
    "shapes: dynamic batch, size 1": "Dim.DYNAMIC starts at 2",
    "shapes: dynamic batch, size 0": "Dim.DYNAMIC starts at 2",
    "shapes: sum of sizes, Dim + 1": "runtime/inputs.py: a size over a symbol that a later argument determines",
    "shapes: unbacked, boolean mask": _UNBACKED,
    "shapes: unbacked, boolean mask, summed": _UNBACKED,
    "shapes: unbacked, masked_select": _UNBACKED,
    "shapes: unbacked, item as a value": _UNBACKED,
    "shapes: unbacked, item as a size": _UNBACKED,
    "shapes: unbacked, repeat_interleave": _UNBACKED,
    "calling: keyword arguments": _CONSTANT,
    "calling: non-tensor arguments": _CONSTANT,
    "calling: number that equals another type": _CONSTANT,
    "calling: nested containers": _CONSTANT,
    "calling: None as an argument": _CONSTANT,
    "calling: a float argument": _CONSTANT,
    "calling: a default spelled out at call": (
        "an argument that the example left to its default cannot be given, even its own value"
    ),
}
"""Case to what is wrong and where."""

CRASHES = {"outputs: complex/real views, view_as_real of the input"}
"""Expected failures that end the process: not run."""
