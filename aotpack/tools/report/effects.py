"""What a call does beside returning values, as the user would name it: writes, aliases, donations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from aotpack_loader.format import schema

from .describe import primal_name
from .memory import StepMemory
from .operations import result_labels

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle

_KINDS = {
    "data": "gets new elements",
    "metadata": "gets other sizes and strides",
    "data_and_metadata": "gets new elements, sizes and strides",
    "storage": "gets another storage (set_)",
    "resize": "is resized (resize_)",
}


class Effect(NamedTuple):
    """``subject`` is an argument, a result or a tensor of the state; ``text`` says what happens to it."""

    kind: str
    subject: str
    text: str


def effects(bundle: Bundle, method: schema.Method, memory: StepMemory) -> list[Effect]:
    """Return the mutations, aliases, conditions on identity, and donations of a method."""
    return [*_mutations(method), *_aliases(method), *_identity(method), *_ties(bundle), *_donations(memory)]


def _mutations(method: schema.Method) -> Iterator[Effect]:
    for mutation in method.mutations:
        notes = [", under no_grad"] if mutation.hidden_from_autograd else []
        yield Effect("changed in place", primal_name(method, mutation.primal), _KINDS[mutation.kind] + "".join(notes))
    for primal in method.touched:
        yield Effect("changed in place", primal_name(method, primal), "its version counter moves, its elements do not change")
    for primal_ in method.primals:
        if isinstance(primal_, (schema.SyntheticBasePrimal, schema.ViewBasePrimal)):
            members = [method.leaves[member.leaf].path for member in primal_.members]
            yield Effect("shared memory", ", ".join(members), "must share memory at every call, as in the example")


def _aliases(method: schema.Method) -> Iterator[Effect]:
    for label, result in zip(result_labels(method), method.results, strict=False):
        if isinstance(result, schema.InputResult):
            yield Effect("alias", label, f"is {primal_name(method, result.primal)} itself")
        elif isinstance(result, schema.AliasResult):
            base = f"output {result.output} of the graph" if result.primal is None else primal_name(method, result.primal)
            steps = " → ".join(step.op.removeprefix("aten.").partition(".")[0] for step in result.view)
            yield Effect("alias", label, f"is a view of {base}" + (f" ({steps})" if steps else ""))


def _identity(method: schema.Method) -> Iterator[Effect]:
    for group in method.identical:
        yield Effect("identity", ", ".join(method.leaves[leaf].path for leaf in group), "must be one tensor at every call")
    if method.distinct:
        yield Effect("identity", "all other arguments", "must be different tensors, because the model compares their identity")


def _ties(bundle: Bundle) -> Iterator[Effect]:
    for entry in bundle.program.state:
        if entry.tied_to is not None:
            yield Effect("tie", entry.name, f"is the same tensor as {entry.tied_to}")


def _donations(memory: StepMemory) -> Iterator[Effect]:
    for tensor in memory.saved:
        if tensor.donated:
            where = f"{tensor.op.removeprefix('aten.').partition('.')[0]} in {tensor.module or 'the model'}"
            yield Effect("donation", tensor.name, f"{tensor.type} of {where}, for the backward alone, which may reuse its memory")
