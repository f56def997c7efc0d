"""Explains why front ends refused a model.

A reason has our own words, then torch's message, then the source line of the model.
Front ends with the same reason are merged. Advice in torch's messages that applies only to
``torch.compile`` is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from aotpack_loader.errors import Problem

from .._torch.tracing.state_assignments import ASSIGNS_STATE
from . import source_lines

BRANCH = "a Python branch depends on the value of a tensor"
COUNT = "a Python branch depends on how many elements a result has, and values decide that (nonzero(), x[mask])"
NUMBER = "Python computes with a number read from a tensor (item(), tolist(), int())"
_NUMPY = "the model turns a tensor into a NumPy array, and tensors have no values while a model is traced"
_SHAPE = "the size of a result depends on the values of a tensor"
# torch's own message for this is about graph breaks only, so it is left out.
_STRIDED = "the model writes to as_strided of a view; take as_strided of the whole tensor, with an offset, or write by an index"
_ENLARGED = "the model enlarges a tensor in place (resize_), which this torch cannot trace; create a new tensor"
_RESIZED = "the model resizes a tensor in place (resize_) to sizes that vary, which torch cannot trace; create a new tensor"
_OUT = "a tensor passed as out= has other sizes, strides or another type than the result"
_EMPTY = (
    "torch traces no gradient of a mean over no elements (mse_loss, smooth_l1_loss, huber_loss of an empty batch): "
    "give an example with elements, and let the size vary from 0 by dynamic_shapes"
)
_KINDS = (
    (_EMPTY, r"ZeroDivisionError"),
    (_OUT, r"OutSizeError|with out= (list of )?tensor variant|non-contiguous `out=`"),
    (_ENLARGED, r"Attempted to (resize a view tensor to a larger size|set the storage .* on different device \"meta\")"),
    (_RESIZED, r"isIntList\(\) INTERNAL ASSERT FAILED"),
    (_STRIDED, r"mutation on a view chain of length \d+, where view \d+ was an as_strided"),
    (COUNT, r"data-dependent expression [^\n]*\(Size-like symbols: u\d"),
    (BRANCH, r"Data-dependent branching|data-dependent expression (Eq|Ne)\(u\d+, 1\)|aten\.(equal|is_nonzero|allclose)\b"),
    (NUMBER, r"data-dependent|local_scalar_dense|`Tensor\.item`"),
    (_NUMPY, r"\.numpy\(\) is not supported"),
    (_SHAPE, r"DynamicOutputShapeException|dynamic shape operator"),
)
_MISLEADING = re.compile(
    r"torch\.compile|torch\._dynamo|torch\.compiler|fullgraph|graph break|eager/uncompiled|compiled? (code|region)"
    r"|(report|file|open|submit) an? (issue|bug)|GitHub",
    re.IGNORECASE,
)
_ASIDE = re.compile(r" \(unhinted: .*\)|\.?\s+\(Size-like symbols: [^)]*\)")
_ON_FAKE_TENSORS = re.compile(r"with fake tensors: .*: got (\w+)\((['\"])(.*)\2\)", re.DOTALL)


@dataclass(frozen=True)
class Reason:
    """The reason of the front ends ``names``.

    ``ours`` is our explanation or empty, ``torch`` is torch's message, and ``where`` is a source
    line of the model. ``own`` says that we raised the error, so ``torch`` has our words.
    """

    names: tuple[str, ...]
    ours: str
    torch: str
    where: str
    own: bool = False

    @property
    def is_whole_number(self) -> bool:
        """Whether Python needs a whole number, of which the trace has a symbol."""
        return self.ours == NUMBER and "specialized integer" in self.torch

    @property
    def problem(self) -> Problem:
        """The reason as one problem of an error."""
        alone = self.ours in (_EMPTY, _STRIDED, _ENLARGED, _RESIZED)  # torch's message describes none of them
        text = f"{self.ours}: {self.torch}" if self.ours and not alone else self.ours or self.torch
        return Problem(", ".join(self.names), text + (f" [at {self.where}]" if self.where and self.where not in text else ""))


def reason(name: str, error: Exception) -> Reason:
    """Return the reason of one front end."""
    text = str(error).strip() or type(error).__name__
    shown = _words(type(error).__name__, text)
    ours = next((words for words, pattern in _KINDS if re.search(pattern, f"{type(error).__name__}: {text}")), "")
    return Reason((name,), ours, shown, line_of(error), type(error).__module__.startswith("aotpack"))


def line_of(error: Exception) -> str:
    """Return the model's source line behind an exception, or an empty string."""
    return source_lines.of_error(error) or "; ".join(getattr(error, "__notes__", []))


def merged(reasons: Iterable[Reason]) -> list[Reason]:
    """Merge equal reasons, in the order of their first occurrence.

    A source line that only one has becomes that of all.
    """
    found: list[Reason] = []
    for new in reasons:
        i = next((i for i, old in enumerate(found) if _same(old, new)), None)
        if i is None:
            found.append(new)
        else:
            old = found[i]
            words = min(old.torch, new.torch, key=lambda text: ("Unsupported" in text and new.ours == _OUT, len(text)))
            found[i] = replace(
                old, names=old.names + new.names, torch=words, where=old.where or new.where, own=old.own or new.own
            )
    return found


def by_use(reasons: Sequence[Reason]) -> list[Reason]:
    """Sort reasons with a source line first, and among these the ones with our explanation or error."""
    return sorted(reasons, key=lambda each: (not each.where, not each.ours, not each.own, ASSIGNS_STATE in each.torch))


def _same(old: Reason, new: Reason) -> bool:
    in_one_line = old.where == new.where or not (old.where and new.where)
    alike = old.ours == new.ours if old.ours or new.ours else _without_position(old.torch) == _without_position(new.torch)
    return in_one_line and alike


def _without_position(text: str) -> str:
    """Return a message without the class of the exception."""
    return re.sub(r"^\w+: ", "", text).strip().rstrip(".")


def _words(kind: str, text: str) -> str:
    """Return torch's message in one line: its first paragraph, without advice that does not apply here."""
    if found := _ON_FAKE_TENSORS.search(text):  # Dynamo repeats an operator's own error
        return f"{found[1]}: {_first_paragraph(found[3])}"
    _, dynamo, raised = text.partition("raised exception ")  # an exception of eager, raised while tracing
    lines = raised.splitlines()[:1] if dynamo else _first_paragraph(text).splitlines()
    lines = [line.strip() for line in lines]
    useful = [line for line in lines if not (line.startswith("Hint:") and _MISLEADING.search(line))]
    kept = [line.removeprefix("Explanation: ").rstrip(".") for line in useful]
    return f"{kind}: " + _ASIDE.sub("", ". ".join(filter(None, kept)))


def _first_paragraph(text: str) -> str:
    """Return the first paragraph, with the next one if the first ends in a colon."""
    first, _, rest = (part.strip() for part in text.partition("\n\n"))
    return f"{first} {_first_paragraph(rest)}" if first.endswith(":") and rest else first
