"""Lowers a normalised graph to an XLA program: runs it once on placeholders, and compares each
value with the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from aotpack_loader.devices.generator import exchange_random_state, random_state
from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema

from ..._torch.api import xla
from ..._torch.api import xla_control_flow as control_flow
from ..._torch.api.random_operators import is_random
from ...graph import source_line
from ...graph.literals import dtype_name
from .hlo import share_computations
from .nested import CONTROL_FLOW, regions
from .sharing import Views

_HIGHER_ORDER = torch.ops.higher_order


@dataclass(frozen=True)
class Lowered:
    """A graph as an XLA program, with its parameters and results; for the fields see
    :class:`schema.XlaExecutable`.
    """

    program: xla.Module | None
    parameters: list[schema.XlaParameter]
    results: list[schema.ArrayType]
    outputs: list[int | schema.GivenInput | schema.ResultView]


def lower(module: GraphModule, key: str, private: frozenset[int], views: Views | None = None) -> Lowered:
    """Lower a graph; ``private`` are the outputs that may be an input itself instead of a copy.

    ``views`` maps outputs to their view steps; the graph returns the base of the view instead
    (:mod:`.sharing`).

    Raises:
        UnsupportedError: torch_xla computes a node with another type than traced, or on the CPU.
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
    with xla.staging(), torch.no_grad():
        program, used, values = _record(module, key, distinct)
        if not used:
            raise UnsupportedError(
                f"{key} depends on no argument, parameter or buffer, and torch_xla runs no computation without any.",
                hint="Create what it returns outside the model, or return it together with a value computed from an argument.",
            )
        results = [_type(value) for value in values]
        found = [_type(value) for value in xla.call(program.hlo, [tensor for tensor, _ in used])]
    if found != results:
        problem = Problem(key, f"{found}, not {results}")
        raise UnsupportedError("torch_xla lowers a graph to other types than the traced ones.", [problem])
    parameters = [schema.XlaParameter(_type(tensor), i) for tensor, i in used]
    return Lowered(program, parameters, results, outputs)


_Source = tuple[torch.Tensor, int | None]
"""The source of a parameter: a tensor and the index of its graph input.

The index is None for a seed of this graph.
"""


def _record(module: GraphModule, key: str, returned: Sequence[Node]) -> tuple[xla.Module, list[_Source], list[torch.Tensor]]:
    """The program that computes the nodes ``returned``, the sources of its parameters, and the
    values on placeholders.
    """
    run = _Staged(module, key)
    inputs = [_placeholder(node.meta["val"]) for node in module.graph.find_nodes(op="placeholder")]
    outputs: Any = module.graph.output_node().args[0]
    values = dict(zip(outputs, run.run(*inputs, enable_io_processing=False), strict=True))
    sources = [(tensor, i) for i, tensor in enumerate(inputs) if tensor is not None] + run.seeds
    tensors = [tensor for tensor, _ in sources]
    results = [_result(values[node]) for node in returned]
    try:
        program = xla.lower(tensors, results)
    except xla.FallbackError as error:
        again = [_placeholder(node.meta["val"]) for node in module.graph.find_nodes(op="placeholder")]
        _Staged(module, key, watched=True).run(*again, enable_io_processing=False)
        raise UnsupportedError("torch_xla cannot lower a graph.", [Problem(key, str(error))]) from error
    if run.regions:  # torch_xla has written them once for each call
        shared = share_computations(program.hlo)
        program = xla.lower(tensors, xla.call(shared, [tensors[i] for i in program.order]))
    return program, [sources[i] for i in program.order], results


def _program(module: GraphModule, key: str) -> control_flow.Program:
    """A nested compile region, a branch or the body of a loop as a program; equal programs become
    one computation.
    """
    outputs: Any = module.graph.output_node().args[0]
    distinct = list(dict.fromkeys(node for node in outputs if node is not None))
    program, used, values = _record(module, key, distinct)
    indices = [None if node is None else distinct.index(node) for node in outputs]
    return control_flow.Program(program.hlo, [i for _, i in used], indices, [(value.dtype, value.shape) for value in values])


def _tensors(values: Sequence[Any]) -> list[Any]:
    """Operands, with None instead of numbers: at fixed sizes nothing reads them."""
    return [value if isinstance(value, torch.Tensor) else None for value in values]


def _placeholder(value: Any) -> torch.Tensor | None:
    """A placeholder for a tensor, None for a number: at fixed sizes nothing reads numbers."""
    return xla.placeholder(value) if isinstance(value, torch.Tensor) else None


def _type(value: torch.Tensor) -> schema.ArrayType:
    return schema.ArrayType(dtype_name(value.dtype), list(value.shape))


def _result(value: torch.Tensor) -> torch.Tensor:
    """The value in its declared type: torch_xla keeps masks as numbers, and indices of pools in 32
    bits.
    """
    if value.dtype is torch.bool:
        return torch.ne(value, 0)
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return value
    return value + torch.zeros((), dtype=value.dtype, device=value.device)


class _Staged(Interpreter):
    """Runs a graph on placeholders.

    ``seeds`` are the sources of its random numbers, in order of creation. Each is a seed of this
    graph, or one of another graph, passed as the input with that index. The random state that
    another graph draws from again is here the seed.

    A ``watched`` run rejects the node that depends on a tensor which torch_xla made from a number.
    """

    def __init__(self, module: GraphModule, key: str, *, watched: bool = False) -> None:
        super().__init__(module)
        self.extra_traceback = False  # our errors have the source line
        self._key = key
        self._inputs = module.graph.find_nodes(op="placeholder")
        self._is_seeded = False
        self._watched: list[torch.Tensor] | None = [] if watched else None
        self.seeds: list[_Source] = []
        self.regions = {region: _program(region, key) for region in regions(module).values()}
        self._seed_of_calls: torch.Tensor | None = None
        self._calls = 0

    def run_node(self, node: Node) -> Any:
        if node.op in ("placeholder", "get_attr", "output"):
            value = super().run_node(node)
            if self._watched is not None and isinstance(value, torch.Tensor):
                self._watched.append(value)
            return value
        if node.target is random_state:
            return self._seed(None)
        if node.target is exchange_random_state:
            return self._exchange(node.args[0])
        if is_random(node) and not self._is_seeded:
            self._seed(None)
        where = source_line(node) or f"{self._key}: {node.name}"
        try:
            value = self._control_flow(node) if node.target in CONTROL_FLOW else super().run_node(node)
        except Exception as error:
            problem = Problem(where, str(error).strip().splitlines()[0])
            raise UnsupportedError(f"torch_xla cannot lower {node.target}.", [problem]) from error
        if message := _difference(value, node.meta["val"]):
            raise UnsupportedError(f"torch_xla lowers {node.target} to a result of another type.", [Problem(where, message)])
        if self._watched is not None and xla.depends_on_others(value, [*self._watched, *(seed for seed, _ in self.seeds)]):
            problem = Problem(where, "torch_xla keeps a number as a tensor on the device, which a program cannot hold")
            raise UnsupportedError(f"torch_xla cannot lower {node.target}.", [problem])
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(torch.device, lambda _: xla.device(), (args, kwargs))
        return super().call_function(target, args, kwargs)

    def _control_flow(self, node: Node) -> list[torch.Tensor | None]:
        args, _ = self.fetch_args_kwargs_from_env(node)
        programs = [self.regions[module] for module in args[CONTROL_FLOW[node.target]]]  # type: ignore[index]
        seeds = [[self._another_seed() for _ in range(program.seeds)] for program in programs]
        match node.target, [_tensors(arg) for arg in args if isinstance(arg, (list, tuple))]:
            case _HIGHER_ORDER.cond, [operands] if isinstance(args[0], torch.Tensor):
                return control_flow.cond(args[0], programs, operands, seeds)
            case _HIGHER_ORDER.cond, [operands]:  # the condition is a known number
                taken = 0 if args[0] else 1
                return control_flow.call(programs[taken], operands, seeds[taken])
            case _HIGHER_ORDER.while_loop, [carried, additional]:
                return control_flow.while_loop(programs[0], programs[1], carried, additional, *seeds)
            case _HIGHER_ORDER.scan, [carry, xs, additional]:
                return control_flow.scan(programs[0], carry, xs, additional, seeds[0])
            case _HIGHER_ORDER.map_impl, [xs, additional]:
                return control_flow.scan(programs[0], [], xs, additional, seeds[0])
        return control_flow.call(programs[0], _tensors(args[2:]), seeds[0])

    def _another_seed(self) -> torch.Tensor:
        """Derive a seed from one that all control flow shares: passing a parameter for each call
        would be slow.
        """
        if self._seed_of_calls is None:
            self._seed_of_calls = self._seed(None)
        self._calls += 1
        return xla.derived_seed(self._seed_of_calls, self._calls)

    def _exchange(self, state: object) -> None:
        """Draw from the seed in an input; if the previous state is restored, draw from a seed of
        this graph again.
        """
        if state in self._inputs:
            self._seed(self._inputs.index(state))
        else:
            assert isinstance(state, Node)
            assert state.target is exchange_random_state, f"{state} is not a random state"
            self._is_seeded = False

    def _seed(self, source: int | None) -> torch.Tensor:
        seed = xla.seed()
        self.seeds.append((seed, source))
        self._is_seeded = True
        return seed


def _difference(value: Any, traced: Any) -> str:
    """How the type of a lowered value differs from the traced one; empty if it does not."""
    if isinstance(traced, (tuple, list)):
        if not isinstance(value, (tuple, list)) or len(value) != len(traced):
            return f"{len(traced)} values were traced"
        return next((message for pair in zip(value, traced, strict=True) if (message := _difference(*pair))), "")
    if not isinstance(traced, torch.Tensor):
        return ""
    expected = f"{dtype_name(traced.dtype)}{list(traced.shape)}"
    if not isinstance(value, torch.Tensor):
        return f"{expected} was traced, torch_xla has a {type(value).__name__}"
    if value.dtype is not traced.dtype or value.shape != traced.shape:
        return f"{expected} was traced, torch_xla has {dtype_name(value.dtype)}{list(value.shape)}"
    return ""
