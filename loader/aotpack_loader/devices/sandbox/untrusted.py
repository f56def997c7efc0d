"""Runs the graphs of a bundle that is not trusted.

Only operators of a list may run (:mod:`.allowed`). Before each call the arguments are checked for what
the operator's kernel relies on. Calls of subgraphs are counted, so that no loop is endless. A trusted
bundle runs without this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import torch

from ...errors import OperatorError, Problem, TrustError
from ...format import schema
from ...format.subgraphs import all_nodes
from .. import operator_arguments, operators
from . import allowed

MAX_STEPS: Final = 1_000_000
"""Nodes that one call of a graph may run, with all repetitions."""
_OF_A_RUN: Final = 30
"""What one run of a graph counts beside its nodes: about what it costs, so that a loop of few nodes ends soon, too."""


_NUMBERS: Final = ("int", "SymInt", "float", "bool", "number", "Scalar")


class Budget:
    """Counts the nodes that one call may still run."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def renew(self) -> None:
        """Begin another call."""
        self.left = MAX_STEPS

    def spend(self, nodes: int) -> None:
        """Take off the nodes of one run of a graph.

        Raises:
            OperatorError: nothing is left.
        """
        self.left -= nodes + _OF_A_RUN
        if self.left < 0:
            raise OperatorError(
                f"This call runs more than {MAX_STEPS} operators: an untrusted bundle may not loop for longer.",
                hint="If you know the bundle, trust it: trust=….",
            )


def require_allowed(graph: schema.Graph, declared: Collection[str], untrusted: str, digest: str) -> None:
    """Refuse operators that are not on the list.

    Args:
        graph: with its subgraphs.
        declared: namespaces that the caller has allowed.
        untrusted: why the bundle is not trusted.
        digest: the bundle's.

    Raises:
        TrustError: lists the operators, and the ways to trust the bundle.
    """
    refuse_unlisted({node.op for node in all_nodes(graph)}, declared, untrusted, digest)


def refuse_unlisted(names: Iterable[str], declared: Collection[str], untrusted: str, digest: str) -> None:
    """As :func:`require_allowed`, for the names of operators."""
    unknown = sorted({name for name in names if name.partition(".")[0] not in declared and not _is_listed(name)})
    for name in unknown:
        operators.implementation(name, declared)  # has errors of its own for operators that no bundle may use
    if unknown:
        raise TrustError(
            "This bundle calls operators that are not known to be safe with a hostile author's arguments.",
            [Problem(name, f"is not on the list for untrusted bundles: {untrusted}") for name in unknown[:50]],
            hint=f'If you know where the bundle comes from, trust it: build it here, pin it with trust="{digest}", '
            'trust a key that signed it, or accept any bundle with trust="all".',
        )


def _is_listed(name: str) -> bool:
    return name.partition(".")[0] in ("builtin", "higher_order") or name in allowed.OPERATORS


def implementation(name: str, declared: Collection[str] = ()) -> Callable[..., Any]:
    """The function that computes ``name`` here, and that checks its arguments first.

    Raises:
        CorruptBundleError, UnsupportedVersionError: as :func:`operators.implementation`.
    """
    function = operators.implementation(name, declared)
    space = name.partition(".")[0]
    if space == "higher_order":
        return _bounded_rows(name, function)
    if name not in allowed.OPERATORS:  # a built-in, or the caller has allowed its namespace
        return function
    if not operators.is_registered(name):  # prims.fma, without the compiler: what stands in for it is a call of torch's own
        return function
    operator = operators.resolve(name)
    assert isinstance(operator, torch._ops.OpOverload)
    needed = _needed(operator)
    rules = allowed.OPERATORS[name]
    return _with_rules(operator, function, needed, rules) if rules else _with_tensors(function, needed)


def _needed(operator: torch._ops.OpOverload) -> list[tuple[int, str]]:
    """Position and name of the parameters that are tensors, or lists of tensors, and not optional."""
    positional, named = operator_arguments.parameters(operator)
    found = [one for one in named.values() if one.kind == "Tensor" and not one.optional and not one.items_optional]
    return [(positional.index(one) if one in positional else -1, one.name) for one in found]


def _with_tensors(function: Callable[..., Any], needed: Sequence[tuple[int, str]]) -> Callable[..., Any]:
    """``function`` where tensors are given. torch takes None for an undefined tensor, which some kernels use."""

    positions = [at for at, _ in needed]
    count = len(positions) if positions == [*range(len(positions))] else -1

    def checked(*args: Any, **kwargs: Any) -> Any:
        if 0 <= count <= len(args):  # in most calls
            for value in args[:count]:
                if value is None or type(value) in (list, tuple):
                    break
            else:
                return function(*args, **kwargs)
        for at, name in needed:
            value = args[at] if 0 <= at < len(args) else kwargs.get(name)
            if value is None or (type(value) in (list, tuple) and None in map(_or_none, value)):
                raise ValueError(f"{name} is null, expected a tensor")
        return function(*args, **kwargs)

    return checked


def _or_none(value: Any) -> Any:
    return None if value is None else 0


def _with_rules(
    operator: torch._ops.OpOverload,
    function: Callable[..., Any],
    needed: Sequence[tuple[int, str]],
    rules: Sequence[Callable[[dict[str, Any]], None]],
) -> Callable[..., Any]:
    """``function`` where all rules hold.

    Rules and function get copies of integers and truth values. Another thread that runs the bundle
    may write to the originals between the check and the use.
    """
    positional, named = operator_arguments.parameters(operator)
    names = [one.name for one in positional]
    numbers = {one.name for one in named.values() if one.kind in _NUMBERS}
    defaults = {a.name: a.default_value for a in operator._schema.arguments if a.has_default_value()}

    def checked(**given: Any) -> Any:
        owned = {name: _own_integers(value) for name, value in given.items()}
        for name in numbers & owned.keys():  # torch takes a tensor of one element for a number
            owned[name] = _plain(owned[name])
        filled = {**defaults, **owned}
        for rule in rules:
            rule(filled)
        return function(**{name: filled[name] for name in given})

    run = _with_tensors(checked, [(-1, name) for _, name in needed])
    return lambda *args, **kwargs: run(**dict(zip(names, args, strict=False)), **kwargs)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, torch.Tensor) else value


def _own_integers(value: Any) -> Any:
    """A copy of a tensor of integers or truth values, or of those in a list. Anything else as it is."""
    if isinstance(value, (list, tuple)):
        return [_own_integers(item) for item in value]
    is_copied = isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()
    return value.clone() if is_copied else value


def _bounded_rows(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Control flow that does not take apart more rows than a call may run."""
    if name not in ("higher_order.scan", "higher_order.map_impl"):
        return function
    at = 2 if name == "higher_order.scan" else 1

    def run(*args: Any) -> Any:
        rows: Sequence[Any] = args[at]
        if sum(x.shape[0] for x in rows if isinstance(x, torch.Tensor) and x.dim()) > MAX_STEPS // _OF_A_RUN:
            raise ValueError(f"there are more than {MAX_STEPS // _OF_A_RUN} rows")
        return function(*args)

    return run
