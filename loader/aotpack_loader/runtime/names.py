"""What primals and saved tensors are to the caller, for messages."""

from __future__ import annotations

from ..format import schema
from .tree import result_paths


def primal_name(primal: schema.Primal, method: schema.Method) -> str:
    """What a primal is to the caller: an argument, the memory of several, a parameter, a buffer or a constant."""
    if isinstance(primal, schema.InputPrimal):
        return method.leaves[primal.leaf].path
    if isinstance(primal, (schema.SyntheticBasePrimal, schema.ViewBasePrimal)):
        return f"the memory of {', '.join(method.leaves[member.leaf].path for member in primal.members)}"
    return f"{_KINDS[type(primal)]} {primal.name!r}"


_KINDS: dict[type, str] = {
    schema.ParameterPrimal: "parameter",
    schema.BufferPrimal: "buffer",
    schema.ConstantPrimal: "constant",
}


def saved_names(method: schema.Method, *, primals_first: bool = False) -> list[str]:
    """What the tensors that autograd saves are to the caller, in the order of the document or with ``primals_first``."""
    assert method.backward is not None
    saved = [item for item in method.backward.saved if isinstance(item, schema.SavedPrimal) or _is_checked(item)]
    if primals_first:
        saved.sort(key=_is_checked)
    return [
        primal_name(method.primals[item.primal], method) if isinstance(item, schema.SavedPrimal) else _output_name(item, method)
        for item in saved
    ]


def _is_checked(item: schema.Saved) -> bool:
    return isinstance(item, schema.SavedOutput) and item.check_version


def _output_name(item: schema.Saved, method: schema.Method) -> str:
    output = item.output if isinstance(item, schema.SavedOutput) else None
    kinds = (schema.FreshResult, schema.AliasResult)
    results = zip(result_paths(method), method.results, strict=True)
    found = [path for path, result in results if isinstance(result, kinds) and result.output == output]
    found += [primal_name(method.primals[change.primal], method) for change in method.mutations if change.output == output]
    return next(iter(found), "a result, or a value written to an argument or a buffer")
