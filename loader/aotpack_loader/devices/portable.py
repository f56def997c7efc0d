"""The portable device: interprets a graph with torch's own operators.

It needs no native code, so it is the safe target. It is also the reference for every other device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from .._torch_compat import profiled, profiler_is_on
from ..archive.bundle import Bundle
from ..errors import CorruptBundleError, TrustError
from ..format import schema
from . import elsewhere, operators
from .base import CpuDevice, Executable
from .literals import literal

if TYPE_CHECKING:
    from .call_library import CallLibrary
    from .sandbox.untrusted import Budget

_Slots = list[Any]
Refused = Callable[[Exception, tuple[str, str]], Exception]
"""What to raise for an error of a node, which is given by its name and operator."""


def _unchanged_error(error: Exception, node: tuple[str, str]) -> Exception:
    return error


class PortableExecutable:
    """A graph as a list of instructions over numbered slots. A value is dropped after its last use."""

    def __init__(
        self, graph: schema.Graph, device: torch.device, declared: Collection[str] = (), refused: Refused = _unchanged_error
    ) -> None:
        self._device, self._refused = device, refused
        self._nodes = [(node.name, node.op) for node in graph.nodes]
        self._subgraphs = {name: self._subgraph(sub, declared) for name, sub in graph.subgraphs.items()}
        self._values = {} if device.type == "cpu" else elsewhere.values_of(graph)
        self._slots = {name: i for i, name in enumerate(graph.inputs)}
        self._count_inputs = len(graph.inputs)
        for node in graph.nodes:
            self._slots[node.name] = len(self._slots)
        last_use = self._last_uses(graph)
        self._rest: list[Any] = [None] * len(graph.nodes)
        """The slots after those of the inputs: results of the nodes, then constants."""
        self._program = [self._instruction(node, declared, last_use) for node in graph.nodes]
        self._unused = last_use.get("", [])
        self._outputs = self._list_builder(graph.outputs)
        self.event_names: Callable[[], list[str]] | None = None
        """Names of the profiler's events, one for each node. An empty name: no event. None: no events at all."""
        self._with_events: list[Any] = []

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the graph on ``inputs`` and return its outputs. ``inputs`` is emptied, so that values can be freed."""
        slots: _Slots = inputs + self._rest
        inputs.clear()
        for slot in self._unused:
            slots[slot] = None
        result = self._count_inputs
        program = self._program if self.event_names is None or not profiler_is_on() else self._program_with_events()
        try:
            for function, args, kwargs, result, dead in program:
                if kwargs is None:
                    slots[result] = function(*args(slots))
                else:
                    slots[result] = function(*args(slots), **kwargs(slots))
                for slot in dead:
                    slots[slot] = None
        except Exception as error:
            shown = self._refused(error, self._nodes[result - self._count_inputs])
            if shown is error:
                raise
            raise shown from error
        return self._outputs(slots)

    def _program_with_events(self) -> list[Any]:
        """The instructions, each inside an event of torch's profiler."""
        if not self._with_events and self.event_names is not None:
            names = self.event_names()
            steps = zip(self._program, names, strict=True)
            self._with_events = [(profiled(step[0], name), *step[1:]) if name else step for step, name in steps]
        return self._with_events

    def _subgraph(self, graph: schema.Graph, declared: Collection[str]) -> PortableExecutable:
        return PortableExecutable(graph, self._device, declared, self._refused)

    def _implementation(self, node: schema.Node, declared: Collection[str]) -> Callable[..., Any]:
        return operators.implementation(node.op, declared)

    def _last_uses(self, graph: schema.Graph) -> dict[str, list[int]]:
        """For each node name the slots that are not read after it; under the empty name, inputs that are never read."""
        seen = set(_names(graph.outputs))
        ends: dict[str, list[int]] = {}
        for node in reversed(graph.nodes):
            used = {*_names(node.args), *_names(list(node.kwargs.values())), node.name} - seen
            ends[node.name] = [self._slots[name] for name in used if name in self._slots]
            seen |= used
        ends[""] = [self._slots[name] for name in graph.inputs if name not in seen]
        return ends

    def _instruction(self, node: schema.Node, declared: Collection[str], last_use: dict[str, list[int]]) -> Any:
        function = self._implementation(node, declared)
        if self._values:
            function = elsewhere.implementation(node, function, self._device, self._values)
        operators.check_arguments(node, declared)
        args = self._argument_reader(node.args)
        kwargs = self._dict_builder(node.kwargs) if node.kwargs else None
        return function, args, kwargs, self._slots[node.name], tuple(last_use[node.name])

    def _argument_reader(self, args: list[Any]) -> Callable[[_Slots], Sequence[Any]]:
        """A function that reads the arguments of a node. Constants have slots, too, so that one call in C reads most nodes'."""
        if not args or any(isinstance(arg, list) and any(_names(arg)) for arg in args):
            return self._list_builder(args)
        slots = [self._slot_of(arg) for arg in args]
        return itemgetter(*slots) if len(slots) > 1 else itemgetter(slice(slots[0], slots[0] + 1))

    def _slot_of(self, arg: Any) -> int:
        if isinstance(arg, schema.ValueRef):
            return self._slot(arg)
        self._rest.append(self._constant(arg))
        return self._count_inputs + len(self._rest) - 1

    def _slot(self, arg: schema.ValueRef) -> int:
        if arg.name not in self._slots:
            raise CorruptBundleError(f"A graph uses the value {arg.name!r}, which it does not define.")
        return self._slots[arg.name]

    def _list_builder(self, args: list[Any]) -> Callable[[_Slots], list[Any]]:
        """A function that builds the argument list from the slots. Constant parts are made once."""
        if not any(_names(args)):
            constant = [self._constant(arg) for arg in args]
            return lambda slots: constant
        parts = [self._builder(arg) for arg in args]
        return lambda slots: [value if read is None else read(slots) for read, value in parts]

    def _dict_builder(self, kwargs: dict[str, Any]) -> Callable[[_Slots], dict[str, Any]]:
        parts = [(key, *self._builder(arg)) for key, arg in kwargs.items()]
        return lambda slots: {key: value if read is None else read(slots) for key, read, value in parts}

    def _builder(self, arg: Any) -> tuple[Callable[[_Slots], Any] | None, Any]:
        """``(reader, None)`` for an argument that depends on slots, ``(None, value)`` for a constant."""
        if isinstance(arg, schema.ValueRef):
            return itemgetter(self._slot(arg)), None
        if isinstance(arg, list) and any(_names(arg)):
            return self._list_builder(arg), None
        return None, self._constant(arg)

    def _constant(self, arg: Any) -> Any:
        if isinstance(arg, list):
            return [self._constant(item) for item in arg]
        if isinstance(arg, schema.GraphArg):
            return self._subgraphs[arg.name]
        if isinstance(arg, schema.ExprArg):
            raise CorruptBundleError("A graph has an argument of type ExprArg where none is allowed.")
        return literal(arg, self._device)


class UntrustedExecutable(PortableExecutable):
    """A graph of an untrusted bundle: arguments are checked before each call, and runs are counted."""

    is_untrusted = True

    def __init__(
        self,
        graph: schema.Graph,
        device: torch.device,
        declared: Collection[str],
        refused: Refused,
        budget: Budget | None = None,
    ) -> None:
        from .sandbox import untrusted  # not imported for trusted bundles

        self._implement = untrusted.implementation
        self._is_root = budget is None
        self._budget = untrusted.Budget() if budget is None else budget
        super().__init__(graph, device, declared, refused)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if self._is_root:
            self._budget.renew()
        self._budget.spend(len(self._nodes))
        return super().__call__(inputs)

    def _subgraph(self, graph: schema.Graph, declared: Collection[str]) -> PortableExecutable:
        return UntrustedExecutable(graph, self._device, declared, self._refused, self._budget)

    def _implementation(self, node: schema.Node, declared: Collection[str]) -> Callable[..., Any]:
        return self._implement(node.op, declared)


def _names(args: list[Any]) -> list[str]:
    """Names of the values read by ``args``."""
    found: list[str] = []
    for arg in args:
        if isinstance(arg, schema.ValueRef):
            found.append(arg.name)
        elif isinstance(arg, list):
            found += _names(arg)
    return found


class PortableDevice(CpuDevice):
    """Runs any bundle from its graphs alone, on any device of torch.

    All devices that the graphs record are the CPU, on which they were traced: ``device`` takes its place.
    ``untrusted`` says why nothing vouches for the bundle; empty: something does. Without trust only
    operators of a list run, with checked arguments, and on the CPU alone.

    Raises:
        TrustError: the bundle is not trusted, and the device is another than the CPU.
    """

    def __init__(self, bundle: Bundle, device: torch.device, untrusted: str = "") -> None:
        self.device = device
        self._untrusted = untrusted
        if untrusted and device.type != "cpu":
            raise TrustError(
                f"Untrusted bundles run on the CPU alone, and device={str(device)!r} was asked for: {untrusted}.",
                hint="How kernels take a hostile author's arguments was tried on the CPU. If you know where the bundle comes "
                f'from, trust it: trust="{bundle.digest}".',
            )
        if untrusted:
            self._require_views(bundle)
        self.call_library: tuple[CallLibrary | None, str] = (None, "portable graphs are interpreted")
        self._bundle = bundle

    def adapted(self, program: schema.Program) -> schema.Program:
        """The program itself: its values are on this device wherever they were on the CPU."""
        return super().adapted(program) if self.device.type == "cpu" else program

    def moved(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The state on this device. Memory that tensors share is moved once, and they share it there, too."""
        return state if self.device.type == "cpu" else elsewhere.moved(state, self.device)

    def _require_views(self, bundle: Bundle) -> None:
        """Refuse views of results that are not on the list."""
        from .sandbox.untrusted import refuse_unlisted  # not imported for trusted bundles

        results = [result for method in bundle.program.methods.values() for result in method.results]
        steps = [step for result in results if isinstance(result, schema.AliasResult) for step in result.view]
        refuse_unlisted({step.op for step in steps}, (), self._untrusted, bundle.digest)

    def executable(self, key: str, graph: schema.Descriptor, arity: tuple[int, int]) -> Executable:
        """The graph itself.

        Raises:
            CorruptBundleError: it takes or returns another number of values than the method
                declares (C14).
            UnsupportedVersionError: it calls operators that are not registered.
        """
        program = self._bundle.graph(graph)
        if (len(program.inputs), len(program.outputs)) != arity:
            raise CorruptBundleError(
                f"C14: the graph of {key} has {len(program.inputs)} inputs and {len(program.outputs)} outputs, not {arity}."
            )
        declared = self._bundle.program.requirements.operators
        operators.require({node.op for node in program.nodes if node.op.partition(".")[0] in declared})

        def refused(error: Exception, node: tuple[str, str]) -> Exception:
            from .refusals import of_operator  # only for errors

            return of_operator(error, node, self._bundle.program, key)

        executable = self._executable(program, declared, refused)
        executable.event_names = lambda: _event_names(self._bundle, key, program)
        if self.device.type == "cpu":
            return executable
        results = [r for name, method in self._bundle.program.methods.items() if key == f"{name}.forward" for r in method.results]
        return elsewhere.with_strided_results(executable, program, results, self.device)

    def _executable(self, program: schema.Graph, declared: Collection[str], refused: Refused) -> PortableExecutable:
        if not self._untrusted:
            return PortableExecutable(program, self.device, declared, refused)
        from .sandbox import untrusted  # not imported for trusted bundles

        untrusted.require_allowed(program, declared, self._untrusted, self._bundle.digest)
        return UntrustedExecutable(program, self.device, declared, refused)


def _event_names(bundle: Bundle, key: str, graph: schema.Graph) -> list[str]:
    """A name for each node of a graph, with the module it comes from. Numbers and items of tuples have none."""
    from ..format.events import event_name  # only for profilers
    from ..format.origins import modules_of

    modules = modules_of(bundle.origins(), key, len(graph.nodes))
    named = enumerate(zip(graph.nodes, modules, strict=True))
    return ["" if node.op.startswith("builtin.") else event_name([module], key, node.op, [i]) for i, (node, module) in named]
