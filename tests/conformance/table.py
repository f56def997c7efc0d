"""All cases; those a build refuses, with the message; those that are known to be wrong, with the diagnosis."""

from __future__ import annotations

from support.releases import TORCH

from devtools.harness import Case

from . import older
from .cases import (
    as_strided,
    assignments,
    autograd,
    calling,
    compiled,
    control_flow,
    gradient_writes,
    hooked_views,
    identity,
    layouts,
    losses,
    masks,
    metadata,
    mutation,
    numbers,
    outputs,
    overlaps,
    own_gradients,
    python,
    random,
    recompute,
    refused_arguments,
    second,
    shapes,
    sparse_gradients,
    state,
    subclasses,
    unbacked,
)

CASES: list[Case] = [*mutation.CASES, *identity.CASES, *outputs.CASES, *autograd.CASES, *state.CASES]
CASES += [*shapes.CASES, *unbacked.CASES, *calling.CASES]
CASES += [*control_flow.CASES, *python.CASES, *random.CASES, *recompute.CASES, *second.CASES, *subclasses.CASES, *overlaps.CASES]
CASES += [*layouts.CASES, *compiled.CASES, *as_strided.CASES, *own_gradients.CASES, *sparse_gradients.CASES, *masks.CASES]
CASES += [*gradient_writes.CASES, *hooked_views.CASES, *losses.CASES, *assignments.CASES, *metadata.CASES, *numbers.CASES]
CASES += refused_arguments.CASES

_NO_FRONT_END = "No front end could trace"

_OVERLAP = r"cases/overlaps.py.*writes to a tensor whose elements overlap in memory"
_MET_AGAIN = r"cases/overlaps.py:\d+.*(reads and writes the same memory through different views|one after another)"
_CALLED_AGAIN = r"called again.*cases/python.py:\d+.*at the first call.*at the second"
_PYTHON_STATE = {
    "a number in a dictionary": r"self.*\.seen.*: read, and changed|called again",
    "a number in a dictionary, read after some calls": r"self.*\.seen.*: read, and changed",
    "a number in an object": r"self.*\.counts.calls: read, and changed|called again",
    "the length of a list": _CALLED_AGAIN,
    "a queue": "read, and changed|called again",
    "a tensor in a list": r"self.*\.memory.*: read, and changed|called again.*a tensor of an earlier call",
    "a number of the class": "calls: read, and changed|called again",
    "a global of a function that it calls": r"COUNTED.*: read, and changed|called again",
    "the length of a global list": _CALLED_AGAIN,
    "a global": "COUNTED.*: read, and changed|called again",
    "a variable of a closure": "calls: read, and changed|cell_contents: read, and changed",
}


_SPARSE = r'creates sparse tensors.*cases/outputs.py", line \d+.*: aten\._to_sparse.* makes a tensor of layout'

_SINCE_2_15 = TORCH >= (2, 15)
"""From 2.15 on, torch's own tracing refuses ``resize_`` to a larger size."""

REFUSED: dict[str, str] = {
    "layouts: offsets in memory, of a slice of any size": r"it uses strides \(as_strided\).*x: is a slice of a larger tensor",
    "layouts: a slice as the example, written where contiguous": r"a call copies first.*x: is a slice of a larger tensor",
    "outputs: sparse, of other sizes": r"Unsupported.*: aten\._to_sparse\.default.*cases/outputs.py:\d+",
    "outputs: sparse, one twice": _SPARSE,
    "outputs: sparse, with a gradient": "SparseCPU",
    "outputs: sparse, computed with": _SPARSE,
    "outputs: sparse, of compressed rows": _SPARSE,
    "overlaps: uneven steps": r"x\.shape\[0\]: dynamic in dynamic_shapes, but the model fixes it at 4",
    "overlaps: windows that grow": r"x\.shape\[1\]: dynamic in dynamic_shapes, but the model fixes it at 8",
    "overlaps: written to": r"mutated that has internal overlap.*cases/overlaps.py:\d+",
    **{f"overlaps: an expanded tensor is written to, {name}": _OVERLAP for name in ("dynamo", "export", "trace")},
    "overlaps: an expanded tensor is written to by a custom operator": _OVERLAP,
    "overlaps: an expanded tensor is written to by an operator's overload": _OVERLAP,
    "overlaps: an expanded argument is written to (eager raises)": _OVERLAP,
    "overlaps: an overlapping as_strided is written to": _OVERLAP,
    "overlaps: as_strided of a slice that was written to": r"as_strided uses strides.*cases/overlaps.py:\d+",
    "overlaps: as_strided of a slice that is written to later": "as_strided uses strides of a slice",
    "overlaps: as_strided_copy of a slice that was written to": "as_strided_copy uses strides of a slice",
    "overlaps: windows are copied with their strides, and written to": _OVERLAP.replace("to a tensor", "to a copy of a tensor"),
    **{f"overlaps: {one.__name__.replace('_', ' ')}": _MET_AGAIN for one in overlaps.MET_AGAIN},
    **{f"Python state, {end}: {name}": text for end in ("dynamo", "export", "trace") for name, text in _PYTHON_STATE.items()},
    "autograd: a backward tells None from zeros, of two results": r"autograd\.py\W.*TellsNoneFromZeros.backward.*materialize",
    **autograd.LOST,
    **autograd.WRITES,
    **gradient_writes.REFUSED,
    **hooked_views.REFUSED,
    **assignments.REFUSED,
    **refused_arguments.REFUSED,
    "identity: a model that asks where its argument begins": r"reads the storage_offset.*cases/identity.py:\d+",
    # Eager's own backward raises as well.
    "input mutation: under no_grad, after use": r"backward fails on.*modified by an inplace operation.*own error in eager",
    "input mutation: data of a leaf that requires grad (eager raises)": "a leaf Variable that requires grad",
    "input mutation: metadata only, t_(), leaf that requires grad (eager raises)": "a leaf Variable that requires grad",
    # torch's tracing: the infer graph is made from inputs that still require a gradient.
    "input mutation: through a view that is returned, non-leaf, without gradients": "view was created in no_grad mode",
    "input mutation: set_ to a new tensor": "set_ on a graph input",
    "input mutation: set_ to another input": "set_ on a graph input",
    # torch's own tracing refuses these as well.
    "identity: an autograd.Function writes to an argument": "marks it as dirty.*mark_dirty",
    **{
        f"identity: aliasing inputs by set_, {how}": "does not count as a write to the other"
        for how in ("one mutated", "the one of set_ mutated", "of a leaf", "weighted")
    },
    "identity: aliasing inputs, of other bases": "does not track them as views of one tensor",
    "identity: aliasing inputs, of another element type": "under another element type",
    "identity: aliasing inputs, sizes changed in place and written": "has its sizes or strides changed in place",
    "state: a Python number that changes from call to call": r"self.*\.calls: read, and changed",
    "state: a global that changes from call to call": r"COUNT.*: read, and changed",
    "state: a dictionary that changes from call to call": r"self.*\.seen.*: read, and changed",
    "state: a first call that does something else": r"self.*\.scaled: read, and changed",
    "state: a plain tensor that changes from call to call": r"self.*\.memory: read, and changed",
    **mutation.OUT_REFUSED,
    "input mutation: resize_ larger and then written in part": r"resize_.*x\.resize_\(2, 4\)",
    "as_strided: one of several views is written (eager raises)": "multiple views.*own error in eager",
    "as_strided: a view beyond a view is written, with a gradient": r"writes to as_strided of a view; take.*as_strided.py:\d+",
    "input mutation: resize_ larger and not written": (
        r"the model enlarges a tensor in place \(resize_\).*mutation.py:\d+: x\.resize_\(2, 4\)"
        if _SINCE_2_15
        else r"x: the model enlarges it.*unset.*in resize_alone: x\.resize_\(2, 4\)"
    ),
    **(
        {"input mutation: resize_ larger": r"the model enlarges a tensor in place \(resize_\).*mutation.py:\d+: x\.resize_\(8\)"}
        if _SINCE_2_15
        else {}
    ),
    "input mutation: resize_as_, sizes that vary": r"to sizes that vary.*metadata\.py:\d+: x\.resize_as_\(y\)",
    "input mutation: metadata and data, as_strided_, built at an offset": "has a storage offset",
    "input mutation: an intermediate turned, written through a view of before": r"created before the sizes of its base.*\.py:\d+",
    "input mutation: metadata only, as_strided_, viewed before": r"mutation.py.*created before as_strided_ changed",
    "state: compiled by torch.compile": r"what torch.compile made of a module.*model._orig_mod",
    "state: a part is compiled by torch.jit": r"0: is a ScriptModule",
    "state: a hook on a parameter": r"weight: has a hook, Masked.keep_first.*register them on the parameters of the loaded",
    "state: a name that the loaded module uses itself": "aotpack: begins with 'aotpack'",
    "tied weights: buffers over one storage, one written": "part, whole: some of these",
    "input mutation: through windows that end within a step": r"unfold do not cover.*cases/mutation.py:\d+",
    "input mutation: .data assigned": r"x\.data = torch.*assigns to \.data",
    "input mutation: storage resize_(0)": r"resize_\(0\): resizes the storage",
    **{
        f"input mutation: {name}, {end}": rf"{end}: .*resizes the storage.*mutation\.py:\d+: [xy]\..*storage\(\)\.resize_"
        for name in ("resize_storage", "resize_typed_storage", "resize_storage_of_a_result")
        for end in ("export", "trace")
    },
    "outputs: requires_grad_() of a detached input": "requires_grad_\\(\\)",
    "own gradients: adds_to_gradients": r"calls backward\(\) while it runs.*cases/own_gradients.py:\d+",
    **dict.fromkeys(
        [f"constants: constant_written_by_a_view, {end}" for end in ("export", "trace")],
        "a number read from a tensor.*cases/python.py",
    ),
    "own gradients: a result that requires a gradient of nothing": "depends on no argument or parameter",
    "own gradients: of_a_used_argument": "after using it; call it before",
    "own gradients: on_and_off": r"requires_grad_\(False\) on an argument; use detach",
    "own gradients: of_a_parameter": "changes requires_grad of net.0.weight while it runs; change it before the build",
    # What a graph cannot draw again, or not as eager does.
    "RNG: torch.manual_seed in the model": "state of the default generator.*seed it before the call.*at .*random.py:\\d+",
    "RNG: torch.seed in the model": "state of the default generator.*at .*random.py:\\d+",
    "RNG: torch.initial_seed in the model": "state of the default generator.*at .*random.py:\\d+",
    "RNG: the state got and set in the model": "state of the default generator.*at .*random.py:\\d+",
    "RNG: fork_rng in the model": "state of the default generator.*at .*random.py:\\d+",
    "RNG: a generator of the model's own": "torch.Generator object",
    "RNG: Python's random": "the same number at every call.*at .*random.py:\\d+",
    "RNG: Python's random, by another name": "random or numpy.random",
    "RNG: NumPy's random": "the same number at every call.*at .*random.py:\\d+",
    "RNG: NumPy's random, an array": "the same number at every call.*at .*random.py:\\d+",
    "RNG: checkpoint without the state": "preserve_rng_state=False.*at .*random.py:\\d+",
    "custom operators: writes to what it also reads": "random.py.*aotpack_conformance.mixed.*shares its memory with another",
    "custom operators: writes to an argument that is returned": "custom .non-ATen. operator whose output has alias annotations",
    "effects: torch's print operator": "side effects.*print, which is not an operator",
    "outputs: a NumPy array": r"returns a NumPy array, which is no value of a graph; return the tensor",
    "outputs: quantized inside": r"outputs.py.*quantize_per_tensor.default for the element type torch.qint8",
    "outputs: an object of a class of the user's": r"result\[1\]: is a builtins.set",
    "second derivatives: views of an intermediate": "results: are views of a value that requires a gradient and is not returned",
    "second derivatives: dynamic batch, convolution": r"Second derivatives do not allow.*batch: torch.s second .* at 5",
    "second derivatives: an input is written to": r"y: is written to by the model",
    "second derivatives: a buffer that is read and overwritten": "scale: is read by the gradients, and written to",
    "autograd: enable_grad inside the model, views of an intermediate": "turns gradients on \\(enable_grad\\) in a method",
    "shapes: unbacked, an operator that branches on it": "Could not guard on data-dependent expression",
    "shapes: as_strided with an offset, built with an offset input": r"shapes.py.*as_strided with an offset from the start",
    "shapes: as_strided with an offset, of a buffer inside its storage": r"shapes.py.*as_strided with an offset from the start",
    **({} if TORCH >= (2, 14) else {"shapes: a size as an exponent": "NYI SymInt equality"}),  # the backward of pow
    **{f"autograd: asks for allclose, {end}": "aten.allclose" for end in ("dynamo", "export", "trace")},
    "shapes: a float argument that varies": r"n: a build fixes this float",
    "shapes: an integer argument that varies, and is fixed by the model": r"n: dynamic in dynamic_shapes, but the model fixes it",
    **{
        f"shapes: what reshape copies at some sizes, {name}, at a size where it does not": text
        for name, text in (
            ("written to", r"reshape returns a view.*writes to one of them.*shapes.py:\d+"),
            ("returned", "reshape returns a view.*the model returns both"),
        )
    },
    "shapes: a branch on data": "a Python branch depends on the value of a tensor",
    # Control flow that eager refuses as well, in its forward or its backward.
    "control flow: cond, a branch writes to its operand": "a leaf Variable that requires grad.*control_flow.py:\\d+",
    "control flow: cond, a branch returns its operand": "aliasing.*torch.cond.*at .*control_flow.py:\\d+",
    "control flow: cond, a branch returns a view of its operand": "aliasing.*torch.cond.*at .*control_flow.py:\\d+",
    "control flow: cond, a branch writes to buffers": "mutation.*torch.cond.*at .*control_flow.py:\\d+",
    "control flow: cond, integer results": "outs_to_grad length.*at .*control_flow.py",
    "control flow: cond, branches of other sizes": "invalid for input of size.*at .*control_flow.py",
    "control flow: while_loop, writes to its operand": "mutation.*torch.while_loop.*at .*control_flow.py:\\d+",
    "control flow: while_loop, a carry that stays": "aliasing.*torch.while_loop.*at .*control_flow.py:\\d+",
    "control flow: flex attention, gradients on a CPU (eager raises)": "does not support backward on CPU.*control_flow.py:\\d+",
    # AOTAutograd refuses them beside subclasses.
    "subclasses: views of a result": r"views_of_a_result: return y.view\(-1\), y.t\(\): is a view of another result",
    "subclasses: dynamic batch, views": "is a view of another result",
    "subclasses: multi-output views of a result": "is a view of another result",
    "subclasses: sizes changed in place": r"not allowed on tensor subclasses",
    "subclasses: metadata that is no plain data": r"args\[0\].*'recipe'.*holds a Recipe",
    "subclasses: no __tensor_flatten__": r"args\[0\]: a Named, a subclass of Tensor without __tensor_flatten__",
    "subclasses: jagged": r"args\[0\]: a NestedTensor with sizes that differ",
    "subclasses: second derivatives": r"x: a torch.testing._internal.two_tensor.TwoTensor",
    "subclasses: two share a part": r"y\.a: shares its memory with x\.a",
}
"""Case to a pattern of the build's message."""


XFAIL: dict[str, str] = {
    # Said at build, by a warning.
    "recompute: BatchNorm inside": "eager updates the statistics again as it recomputes, a bundle once a step (as torch.compile)",
    # Values are eager's, lazy flags are not (spec, A4).
    "outputs: lazy conjugate of an argument passed on": "arguments are resolved before a graph runs: no result inherits the flag",
}
"""Case to what is wrong and where."""

CASES = [case for case in CASES if older.runs(case)]
_NAMES = {case.name for case in CASES}
REFUSED = {name: text for name, text in (REFUSED | older.REFUSED).items() if name in _NAMES - older.XFAIL.keys()}
XFAIL = {name: text for name, text in (XFAIL | older.XFAIL).items() if name in _NAMES}
