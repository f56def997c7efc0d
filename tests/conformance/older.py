"""What the rows of the table do with other releases of torch: 2.9, 2.11 and 2.15."""

from __future__ import annotations

from support.releases import TORCH

from devtools.harness import Case

REFUSED: dict[str, str] = {}
"""Case to a pattern of the build's message, where it is another one than with torch 2.13."""

XFAIL: dict[str, str] = {}
"""Case to what is wrong with this torch."""

_NOT_IN_EAGER: tuple[str, ...] = ()
"""Cases that this torch cannot run in eager."""


def runs(case: Case) -> bool:
    """Whether this torch has what a case needs. aotpack uses no Dynamo of torch 2.9."""
    return case.name not in _NOT_IN_EAGER and (TORCH >= (2, 10) or tuple(case.front_ends) != ("dynamo",))


if TORCH < (2, 13):
    REFUSED |= {
        **{
            f"control flow: {name}, inference": r"own error in eager|Higher order ops do not support input mutation"
            for name in ("cond, a branch writes to its operand", "while_loop, writes to a captured tensor")
        },
        **{f"outputs: changed in shape, and views of them{end}": r"aten.equal.*x\.quantile" for end in ("", ", plain")},
        "outputs: through NumPy": "ndarray",
        "outputs: quantized inside": r"quantize_per_tensor.default for the element type torch.qint8|UnsupportedFake",
        "Python state, dynamo: a number of the class": r"setattr.*python.py:\d+: type\(self\).calls",
        "RNG: a generator of the model's own": r"torch.Generator( object|\(\))",
        "second derivatives: dynamic batch, convolution": r"Second derivatives do not allow.* at 5|Cannot call numel",
        **{
            f"gradient writes: {name}, in a hook, dynamo": r"gradient_writes\.py\W.*line \d+.*grad_output"
            for name in ("a gradient of two inputs", "a tangent of two inputs", "an expanded gradient")
        },
        "state: modules are moved to where they are, dynamo": "dynamo: NotImplementedError",
    }
    XFAIL |= {"layouts: pooled, dynamic, portable": "a guard allows too few sizes"}
    _NOT_IN_EAGER = ("custom operators: torch's own, registered at its first use", "losses: of two element types, portable")

if TORCH < (2, 10):
    _NOT_IN_EAGER += ("effects: torch's print operator",)
    REFUSED |= {
        "input mutation: an intermediate resized to more elements": "enlarges a tensor in place",
        "input mutation: resize_ larger and then written in part": "enlarges a tensor in place",
        "input mutation: metadata only, as_strided_, of any size, beyond the argument (eager raises where the storage ends)": (
            "out of bounds for storage"
        ),
        "input mutation: storage resize_(0)": r"resizes the storage.*mutation\.py:\d+: x\.untyped_storage\(\)\.resize_\(0\)",
        "input mutation: .data assigned": "Boolean value of Tensor",
        "outputs: a NumPy array": "turns a tensor into a NumPy array",
        "autograd: a backward writes to an argument that it saved": "backward writes to an argument, parameter or buffer",
        "state: a parameter is assigned its own data": "Boolean value of Tensor",
        "state: a part is compiled by torch.compile": "dynamo-optimized function",
        "state: a first call that does something else": "scaled: read, and changed",
        "state: a plain tensor that changes from call to call": "acts differently when it is called again",
        "shapes: sizes computed with real numbers": r"x\.shape\[0\]: dynamic in dynamic_shapes, but the model fixes it",
        "shapes: divisibility, 2*Dim": "appears only inside an expression",
        "shapes: unbacked, split at indices in a tensor": "Could not guard on data-dependent expression",
        "control flow: cond, integer results": "AssertionError",
        **{
            f"control flow: {name}": f"{text} during higher order op tracing"
            for name, text in (
                ("cond, a branch returns its operand", "Encountered aliasing"),
                ("cond, a branch returns a view of its operand", "Encountered aliasing"),
                ("cond, a branch writes to buffers", "Encountered input mutation"),
                ("while_loop, writes to its operand", "Encountered input mutation"),
                ("while_loop, a carry that stays", "Encountered aliasing"),
            )
        },
        "control flow: map, dynamic length": r"x\.shape\[0\]: dynamic in dynamic_shapes, but the model fixes it",
        "control flow: flex attention, gradients on a CPU (eager raises)": "flex_attention_backward, which this loader",
        "Python state, export: a list that nothing reads": "Node arity mismatch",
        "subclasses: views of a result": "result 1: is a view of another result",
        "subclasses: jagged": "No front end could trace the model.*NestedIntNode",
    }
    XFAIL |= {
        **dict.fromkeys(("outputs: sizes", "outputs: sizes, dynamic"), "a torch.Size among the results is a tuple"),
        "control flow: cond, branches of other sizes": "eager's backward raises an error, a bundle's gives the right gradient",
        "RNG: other strides": "check='full' finds other strides of a saved value than the bundle has recorded",
        "shapes: sizes 0, 1 and more, slices": "the recorded size of a slice that may be empty",
    }

if TORCH >= (2, 15):
    REFUSED |= {
        f"gradient writes: {name}, in a hook, dynamo": r"input mutation during higher order.*gradient_writes\.py:\d+"
        for name in ("the tangent", "a tangent of two inputs", "a gradient of two inputs", "an expanded gradient")
    }
