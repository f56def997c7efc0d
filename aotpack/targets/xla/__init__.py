"""The XLA target lowers each graph by rules of its own over jax to StableHLO. It derives HLO for torch_xla from that,
or compiles it for one platform.

Lowering runs nothing, and no weight is in memory. Operators without a rule (:mod:`.rules`) are decomposed
(:mod:`.normalise`). If torch has no decomposition either, they are rejected with the user's source line
(:mod:`.check`, :mod:`.lower`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from msgspec import structs
from torch.utils import _pytree as pytree

from aotpack_loader.devices.xla import has_subclasses, unsupported, unsupported_state
from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import media_types, schema
from aotpack_loader.format.donations import of_backward, of_forward

from ..._torch.tracing.aot_autograd import Decompositions
from ...writer.bundle import BlobStore, TargetEntry
from ...writer.cache import CompileCache
from ..base import Capabilities, GraphToCompile, Target
from ..nested import copy_of
from . import aot

if TYPE_CHECKING:
    from .lower import Lowered
    from .sharing import Views

_TORCH_XLA = "==2.9.*"
"""The releases of torch_xla, and of torch, that run programs which are not compiled. There are no later ones."""


class XlaTarget(Target):
    """Devices behind XLA, through torch_xla: one program serves CPUs, TPUs and others, and is compiled at load.

    Args:
        variant: the platform to compile for during the build: ``cpu``, or a TPU's topology (``tpu-v5e-2x2``). Empty: none.

    Raises:
        BuildError: jax is not installed, or libtpu if the variant needs it; or the variant does not exist.
    """

    capabilities = Capabilities(specializes=True, keeps_loops=True, orders_ties=False)

    def __init__(self, variant: str = "") -> None:
        self._variant = variant
        self._platform = aot.Platform(variant) if variant else None
        aot.installed("jax", "jaxlib")

    @property
    def name(self) -> str:
        return f"xla:{self._variant}" if self._variant else "xla"

    def decompositions(self, *, exact_random: bool) -> Decompositions:
        """The decompositions that lowering applies anyway: with them the partitioner sees the
        operators that run.

        Raises:
            UnsupportedError: exact random numbers are required, but XLA devices draw other numbers
                than eager on the CPU.
        """
        from .decompositions import table

        if exact_random:
            raise UnsupportedError("The xla target draws its own random numbers.", hint='Build it without rng="eager".')
        return table()

    def compile(
        self, graphs: Sequence[GraphToCompile], state: Sequence[schema.StateEntry], store: BlobStore, cache: CompileCache
    ) -> TargetEntry:
        if self._platform is None:  # with a platform, code runs on tensors with strides and addresses
            _refuse_state(state)
        modules = _normalised(graphs, has_strides=self._platform is not None)
        computations: dict[str, list[schema.XlaExecutable]] = {}
        for item in graphs:  # a forward before its backward
            forwards = computations.get(f"{_method_of(item)}.forward", [])
            computations[item.key] = [
                self._computation(item, *module, forwards[i : i + 1], store, cache) for i, module in enumerate(modules[item.key])
            ]
        varying = {item.key: item.specializations for item in graphs if item.specializations}
        fixed = {key: only for key, (only, *_) in computations.items() if key not in varying}
        methods = {_method_of(item): item.specializations for item in graphs if item.key in varying}
        by_sizes = {name: _by_sizes(sizes, computations, name) for name, sizes in methods.items()}
        every = [computation for several in computations.values() for computation in several]
        layers = [blob for item in every for blob in (item.hlo, item.stablehlo, item.code) if blob is not None]
        return self._entry(fixed, by_sizes, layers)

    def _computation(
        self,
        item: GraphToCompile,
        module: torch.fx.GraphModule,
        views: Views,
        forward: Sequence[schema.XlaExecutable],
        store: BlobStore,
        cache: CompileCache,
    ) -> schema.XlaExecutable:
        """Lower a normalised graph and add its code to ``store``.

        For a backward graph, ``forward`` has the forward's.
        """
        from .barriers import order_recomputation
        from .lower import lower
        from .repeats import call_repeats

        if item.method is not None and item.method.backward is not None and item.key.endswith(".backward"):
            inputs = module.graph.find_nodes(op="placeholder")
            order_recomputation(module, inputs[len(item.method.backward.saved) :])
        call_repeats(module)
        platform = "cpu" if self._platform is None else self._platform.device
        lowered = lower(module, item.key, item.private, views, platform=platform)
        code = {} if lowered.stablehlo is None else self._code(item.key, lowered, lowered.stablehlo, store, cache)
        computation = schema.XlaExecutable(lowered.parameters, lowered.results, lowered.outputs)
        if self._platform is not None or item.method is None:
            return structs.replace(computation, **code)
        found = of_backward(item.method, forward[0]) if forward else of_forward(item.method, computation)
        donated = [i for i, parameter in enumerate(computation.parameters) if parameter.input in found]
        return structs.replace(computation, donated=donated, **code)

    def _code(
        self,
        key: str,
        lowered: Lowered,
        stablehlo: bytes,
        store: BlobStore,
        cache: CompileCache,
    ) -> dict[str, schema.Descriptor]:
        """The blobs of a computation, by their field of :class:`schema.XlaExecutable`."""
        from .stablehlo import hlo

        portable = store.add_compressed(stablehlo, media_types.CODE_STABLEHLO)
        if self._platform is None:
            _refuse_for_torch_xla(key, lowered)
            return {"hlo": store.add_compressed(hlo(stablehlo), media_types.CODE_HLO), "stablehlo": portable}
        compiled = self._platform.compile(key, stablehlo, cache)
        return {"stablehlo": portable, "code": store.add_compressed(compiled, media_types.CODE_PJRT)}

    def _entry(
        self,
        computations: dict[str, schema.XlaExecutable],
        specializations: dict[str, list[schema.Specialization]],
        layers: list[schema.Descriptor],
    ) -> TargetEntry:
        from .stablehlo import releases

        toolchain = {"torch": str(torch.__version__), **releases()}
        if self._platform is not None:
            toolchain |= self._platform.toolchain()
            return self._platform.entry(self.name, computations, specializations, layers, toolchain)
        target = schema.Target(
            name=self.name,
            kind="xla",
            device="xla",
            torch=_TORCH_XLA,
            toolchain=toolchain,
            xla=computations,
            packages={"torch_xla": _TORCH_XLA},
            specializations=specializations,
        )
        return TargetEntry(target, None, layers)


_REFUSED = "XLA cannot compute all of this model."
_INSTEAD = (
    "Write these parts with other operators, compute them outside the model, or build for the targets 'portable' or 'cpu', "
    "which run every operator of torch."
)


def _method_of(item: GraphToCompile) -> str:
    return item.key.rpartition(".")[0]


def _refuse_state(state: Sequence[schema.StateEntry]) -> None:
    """Reject parameters and buffers that a load on an XLA device would reject."""
    if found := unsupported_state(state):
        raise UnsupportedError(
            "An XLA device cannot hold all of this model's parameters and buffers.",
            found,
            hint="Use a clone() for one of them, or register one tensor under both names.",
        )


def _refuse_for_torch_xla(key: str, lowered: Lowered) -> None:
    """Reject programs that torch_xla cannot run."""
    if not lowered.parameters:
        raise UnsupportedError(
            f"{key} depends on no argument, parameter or buffer, and torch_xla runs no computation without any.",
            hint="Create what it returns outside the model, or return it together with a value computed from an argument.",
        )
    if lowered.calls:
        raise UnsupportedError(
            "torch_xla lacks functions that the program calls.",
            [Problem(key, f"calls {name}, of jaxlib's library for the CPU") for name in sorted(lowered.calls)],
            hint="Build for xla:cpu, which jaxlib runs, or for the targets 'portable' or 'cpu'.",
        )


def _normalised(graphs: Sequence[GraphToCompile], *, has_strides: bool) -> dict[str, list[tuple[torch.fx.GraphModule, Views]]]:
    """For each key, the normalised graphs and their outputs that are views, one pair for each
    specialization.

    ``has_strides``: the tensors of the code have strides and addresses, as those of torch's own devices.

    Raises:
        UnsupportedError: names everything that XLA cannot compute, with the user's source lines.
    """
    from ..numbers import numbers_as_tensors
    from .check import problems
    from .normalise import normalise
    from .sharing import refuse_shared_results, shared_outputs
    from .specialize import at_sizes

    methods = {_method_of(item): item.method for item in graphs if item.method is not None}
    refused = _eager_random if has_strides else unsupported
    if found := [problem for name, method in methods.items() for problem in refused(name, method)]:
        raise UnsupportedError(_REFUSED, found, hint=_INSTEAD)
    _refuse_varying(graphs)
    modules: dict[str, list[tuple[torch.fx.GraphModule, Views]]] = {}
    for item in graphs:
        if item.key.endswith(".forward") and item.method is not None:
            refuse_shared_results(item.module, item.method)
        fixed_sizes = [at_sizes(item, sizes) for sizes in item.specializations] or [item.module]
        parts = item.key.endswith(".forward") and item.method is not None and has_subclasses(item.method)
        shared = [shared_outputs(module, item.private, parts=parts) for module in fixed_sizes]
        modules[item.key] = [(normalise(numbers_as_tensors(module)), views) for module, views in shared]
    if found := [problem for key, several in modules.items() for module, _ in several for problem in problems(module, key)]:
        raise UnsupportedError(_REFUSED, list(dict.fromkeys(found)), hint=_INSTEAD)
    return modules


def _eager_random(name: str, method: schema.Method) -> list[Problem]:
    return [Problem(name, "draws eager's random numbers, which XLA does not")] if method.rng == "eager" else []


def _refuse_varying(graphs: Sequence[GraphToCompile]) -> None:
    """Reject dynamic sizes without specializations. Those of arguments that nothing reads do not matter."""
    methods = [item.method for item in graphs if item.method and not item.specializations and _varies(item.module)]
    if any(method.step for method in methods):
        raise UnsupportedError(
            "XLA compiles for fixed sizes, and this optimizer updates as many rows as a sparse gradient has.",
            hint="Build without this target, or with an optimizer for dense gradients (sparse=False in the model).",
        )
    labels = dict.fromkeys(symbol.label or symbol.name for method in methods for symbol in method.symbols)
    if not labels:
        return
    example = ",".join(f"{label}=8" for label in labels)
    raise UnsupportedError(
        f"XLA compiles for fixed sizes, and {', '.join(labels)} varies from call to call.",
        hint=f"Name each set of sizes: --specialize {example} (specializations=[...] in Python), which may be repeated. "
        "Or build without dynamic_shapes.",
    )


def _varies(module: torch.fx.GraphModule) -> bool:
    """Whether a graph reads values of dynamic sizes."""
    graph = copy_of(module).graph
    graph.eliminate_dead_code()
    values = pytree.tree_leaves([node.meta.get("val") for node in graph.nodes if node.users])
    return any(not isinstance(size, int) for value in values if isinstance(value, torch.Tensor) for size in value.shape)


def _by_sizes(
    specializations: Sequence[Mapping[str, int]], computations: Mapping[str, Sequence[schema.XlaExecutable]], method: str
) -> list[schema.Specialization]:
    """The computations of a method, grouped by specialization."""
    forwards = computations[f"{method}.forward"]
    backwards = computations.get(f"{method}.backward", [None] * len(forwards))
    together = zip(specializations, forwards, backwards, strict=True)
    return [schema.Specialization(dict(sizes), forward, backward) for sizes, forward, backward in together]
