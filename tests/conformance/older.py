"""What the rows of the table do with other releases of torch: 2.11 and 2.15."""

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
    """Whether this torch has what a case needs."""
    return case.name not in _NOT_IN_EAGER


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

if TORCH >= (2, 15):
    REFUSED |= {
        f"gradient writes: {name}, in a hook, dynamo": r"input mutation during higher order.*gradient_writes\.py:\d+"
        for name in ("the tangent", "a tangent of two inputs", "a gradient of two inputs", "an expanded gradient")
    }
