"""Lowers a normalised graph to an XLA program: runs it once on jax's tracers, and compares each value with the trace."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from aotpack_loader.devices.generator import exchange_random_state, random_state
from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema

from ...graph import source_line
from ...graph.literals import dtype_name
from ..nested import CONTROL_FLOW, graphs_run_by
from .barriers import barrier
from .rules import DTYPES, RANDOM, RULES, Array
from .sharing import Views
from .stablehlo import lowered

_HIGHER_ORDER = torch.ops.higher_order
_SEED = schema.ArrayType("int64", [])
_SEED_FACTOR, _SEED_STEP = 0x5851F42D4C957F2D, 0x9E3779B97F4A7C1
"""Derive seeds of calls or turns from one seed: seed * factor + step * number, modulo 2**64. The factor is Knuth's (MMIX).

Without the factor, turn 1 of call 2 would draw the same numbers as turn 2 of call 1.
"""


@dataclass(frozen=True)
class Lowered:
    """A graph as an XLA program, with its parameters and results; for the fields see :class:`schema.XlaExecutable`.

    ``stablehlo``: a portable artifact; null where the graph only returns inputs. ``calls``: the functions of the
    platform's own library that it calls.
    """

    stablehlo: bytes | None
    parameters: list[schema.XlaParameter]
    results: list[schema.ArrayType]
    outputs: list[int | schema.GivenInput | schema.ResultView]
    calls: frozenset[str] = frozenset()


def lower(
    module: GraphModule, key: str, private: frozenset[int], views: Views | None = None, *, platform: str = "cpu"
) -> Lowered:
    """Lower a graph; ``private`` are the outputs that may be an input itself instead of a copy.

    ``views`` maps outputs to their view steps; the graph returns the base of the view instead (:mod:`.sharing`).
    ``platform`` is jax's name of what will run it; linear algebra differs.

    Raises:
        UnsupportedError: a node has no rule, or its rule computes another type than traced.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    returned: Sequence[Node] = module.graph.output_node().args[0]  # type: ignore[assignment]
    passed = {i: placeholders.index(node) for i, node in enumerate(returned) if i in private and node in placeholders}
    distinct = list(dict.fromkeys(node for i, node in enumerate(returned) if i not in passed))
    outputs: list[int | schema.GivenInput | schema.ResultView] = [
        schema.GivenInput(passed[i]) if i in passed else distinct.index(node) for i, node in enumerate(returned)
    ]
    for i, steps in (views or {}).items():
        outputs[i] = schema.ResultView(distinct.index(returned[i]), steps)
    if not distinct:
        return Lowered(None, [], [], outputs)
    used = [i for i, node in enumerate(placeholders) if node.users and isinstance(node.meta["val"], torch.Tensor)]
    parameters = [schema.XlaParameter(_type(placeholders[i].meta["val"]), i) for i in used]
    if _takes_seed(module):
        parameters.append(schema.XlaParameter(_SEED, None))

    def aotpack(*given: Array) -> list[Array]:
        values = dict(zip(used, given, strict=False))
        found = _Run(module, key, given[-1] if given else None)([values.get(i) for i in range(len(placeholders))])
        by_node = dict(zip(returned, found, strict=True))
        return [by_node[node] for node in distinct]

    types = [(DTYPES[getattr(torch, item.type.dtype)], item.type.shape) for item in parameters]
    program, calls = lowered(aotpack, types, platform)
    return Lowered(program, parameters, [_type(node.meta["val"]) for node in distinct], outputs, frozenset(calls))


def _type(value: torch.Tensor) -> schema.ArrayType:
    return schema.ArrayType(dtype_name(value.dtype), list(value.shape))


def _takes_seed(module: GraphModule) -> bool:
    """Whether a graph draws numbers from another seed than one in an input."""
    is_given = False
    for node in module.graph.nodes:
        if node.target is exchange_random_state:
            is_given = node.args[0].op == "placeholder"
        elif (
            node.target is random_state
            or (node.target in RANDOM and not is_given)
            or any(_takes_seed(graph) for graph in _graphs(module, node))
        ):
            return True
    return False


def _graphs(module: GraphModule, node: Node) -> Iterator[GraphModule]:
    for graph in graphs_run_by(node):
        yield module.get_submodule(str(graph.target))  # type: ignore[misc]


def _tensors(values: Sequence[Any]) -> list[Any]:
    """Operands, with None instead of numbers: at fixed sizes nothing reads them."""
    return [None if isinstance(value, (bool, int, float)) else value for value in values]


def _truth(value: Array) -> Array:
    """A value with one element of any type as a truth value without dimensions."""
    return value.reshape(()) != 0


class _Run:
    """Runs a graph on jax's tracers.

    ``seed`` is that of this run. Random numbers are drawn from it, or from one that an input holds: the random state
    that another graph draws from again is here the seed.
    """

    def __init__(self, module: GraphModule, key: str, seed: Array) -> None:
        self._module, self._key, self._seed = module, key, seed
        self._values: dict[Node, Any] = {}
        self._callables: dict[GraphModule, Callable[..., Any]] = {}
        self._source: Array | None = None
        self._seeds = self._drawn = 0

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs; None stands for numbers among the inputs."""
        left = iter(inputs)
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = next(left)
            elif node.op == "get_attr":
                self._values[node] = self._module.get_submodule(str(node.target))
            elif node.op == "output":
                return list(self._given(node.args[0]))
            else:
                self._values[node] = self._checked(node, self._computed(node))
        raise AssertionError("a graph without an output")

    def _given(self, arguments: Any) -> Any:
        return pytree.tree_map_only(Node, self._values.__getitem__, arguments)

    def _computed(self, node: Node) -> Any:
        args = self._given(tuple(node.args))
        if node.target is operator.getitem:
            return args[0][args[1]]
        if node.target is random_state:
            return self._draw_from(self._another_seed())
        if node.target is exchange_random_state:
            return self._exchange(node.args[0], args[0])
        try:
            if node.target is barrier:
                return list(lax.optimization_barrier(tuple(args[0])))
            if node.target in CONTROL_FLOW:
                return self._control_flow(node.target, args)
            kwargs = {name: value for name, value in self._given(dict(node.kwargs)).items() if name != "generator"}
            if node.target in RANDOM:
                kwargs["key"] = self._next_key()
            return RULES[node.target](node, *args, **kwargs)
        except UnsupportedError:
            raise
        except Exception as error:  # jax raises any for arguments that a rule has not foreseen
            problem = Problem(self._where(node), f"{type(error).__name__}: {error}".strip().splitlines()[0])
            raise UnsupportedError(f"XLA's rule for {node.target} does not take these arguments.", [problem]) from error

    def _where(self, node: Node) -> str:
        return source_line(node) or f"{self._key}: {node.name}"

    def _checked(self, node: Node, value: Any) -> Any:
        """The value, if it has the traced types.

        Raises:
            UnsupportedError: it has others.
        """
        if node.op != "call_function" or node.target is exchange_random_state:
            return value
        traced = node.meta["val"]
        if isinstance(traced, torch.Tensor):
            return self._checked_array(node, value, traced)
        if not isinstance(traced, (tuple, list)):
            return value
        if len(value) != len(traced):
            raise self._other_type(node, f"{len(traced)} values were traced, not {len(value)}")
        pairs = zip(value, traced, strict=True)
        return [self._checked_array(node, one, like) if isinstance(like, torch.Tensor) else one for one, like in pairs]

    def _checked_array(self, node: Node, value: Array, traced: torch.Tensor) -> Array:
        if value is None:  # a gradient that was not asked for
            return None
        if value.dtype != DTYPES[traced.dtype] or value.shape != tuple(traced.shape):
            expected = f"{dtype_name(traced.dtype)}{list(traced.shape)}"
            raise self._other_type(node, f"{expected} was traced, the rule has {value.dtype}{list(value.shape)}")
        return lax.convert_element_type(value, value.dtype)  # the type of a number in it no longer gives way to others

    def _other_type(self, node: Node, message: str) -> UnsupportedError:
        problem = Problem(self._where(node), message)
        return UnsupportedError(f"XLA's rule for {node.target} computes a result of another type.", [problem])

    def _another_seed(self) -> Array:
        self._seeds += 1
        return self._seed * _SEED_FACTOR + _SEED_STEP * self._seeds % 2**63

    def _draw_from(self, seed: Array) -> Array:
        self._source, self._drawn = seed, 0
        return seed

    def _next_key(self) -> Array:
        if self._source is None:
            self._draw_from(self._another_seed())
        self._drawn += 1
        return jax.random.fold_in(jax.random.key(self._source), self._drawn)

    def _exchange(self, state: object, seed: Array) -> Array:
        """Draw from the seed in an input; if the previous state is restored, draw from a seed of this graph again."""
        assert isinstance(state, Node)
        if state.op == "placeholder":
            return self._draw_from(seed)
        assert state.target is exchange_random_state, f"{state} is not a random state"
        self._source = None
        return seed

    def _part(self, module: GraphModule) -> Callable[..., list[Any]]:
        """A graph that this one runs, as a function of a seed and of its inputs. Equal calls become one computation."""
        if module not in self._callables:

            def part(seed: Array, *inputs: Any) -> list[Any]:
                return _Run(module, self._key, seed)(inputs)

            self._callables[module] = jax.jit(part)
        return self._callables[module]

    def _seed_for(self, *modules: GraphModule) -> Array:
        """A seed for what draws numbers; the others get one constant, so that equal calls stay equal."""
        return self._another_seed() if any(_takes_seed(module) for module in modules) else jnp.int64(0)

    def _control_flow(self, target: Any, args: Sequence[Any]) -> list[Any]:
        if target is _HIGHER_ORDER.cond:
            return self._cond(*args)
        if target is _HIGHER_ORDER.while_loop:
            return self._while_loop(*args)
        if target is _HIGHER_ORDER.scan:
            return self._scan(*args)
        if target is _HIGHER_ORDER.map_impl:
            body, rows, additional = args
            return self._scan(body, (), rows, additional)
        return self._part(args[0])(self._seed_for(args[0]), *_tensors(args[2:]))

    def _cond(self, condition: Any, yes: GraphModule, no: GraphModule, operands: Sequence[Any]) -> list[Any]:
        seed, given = self._seed_for(yes, no), _tensors(operands)
        if isinstance(condition, (bool, int, float)):
            return self._part(yes if condition else no)(seed, *given)
        branches = [self._part(branch) for branch in (yes, no)]
        return list(lax.cond(_truth(condition), *branches, seed, *given))

    def _while_loop(
        self, condition: GraphModule, body: GraphModule, carried: Sequence[Any], additional: Sequence[Any]
    ) -> list[Any]:
        seed, given = self._seed_for(condition, body), _tensors(additional)

        def goes_on(state: tuple[Array, list[Any]]) -> Array:
            number, values = state
            return _truth(self._part(condition)(_of_turn(seed, 2 * number), *values, *given)[0])

        def turn(state: tuple[Array, list[Any]]) -> tuple[Array, list[Any]]:
            number, values = state
            return number + 1, self._part(body)(_of_turn(seed, 2 * number + 1), *values, *given)

        return lax.while_loop(goes_on, turn, (jnp.int64(0), list(carried)))[1]  # type: ignore[no-any-return]

    def _scan(self, body: GraphModule, carry: Sequence[Any], rows: Sequence[Any], additional: Sequence[Any]) -> list[Any]:
        seed, given, many = self._seed_for(body), _tensors(additional), len(carry)

        def turn(state: tuple[Array, list[Any]], row: list[Any]) -> tuple[tuple[Array, list[Any]], list[Any]]:
            number, values = state
            found = self._part(body)(_of_turn(seed, number), *values, *row, *given)
            return (number + 1, found[:many]), found[many:]

        (_, last), stacked = lax.scan(turn, (jnp.int64(0), list(carry)), list(rows))
        return [*last, *stacked]


def _of_turn(seed: Array, number: Array) -> Array:
    return seed * _SEED_FACTOR + _SEED_STEP * number
