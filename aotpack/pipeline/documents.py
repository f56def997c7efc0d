"""Turns traced methods into the program's document, and stores their graphs as blobs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec import structs
from torch.fx import GraphModule

from aotpack_loader.errors import CorruptBundleError, UnsupportedError
from aotpack_loader.format import codec, features, media_types, schema, subclasses, subgraphs
from aotpack_loader.format.validate import validate_program
from aotpack_loader.format.validate_graph import validate_graph
from aotpack_loader.format.versions import FORMAT_VERSION

from .. import capture, graph
from ..capture.inputs.examples import parameters
from ..graph.literals import NOT_A_LITERAL, literal_argument
from ..model.interface import describe_pretrained, describe_signature
from ..model.modules import describe_modules
from ..targets import GraphToCompile, graphs_to_compile
from ..writer.bundle import BlobStore
from .context import BuildContext
from .traced_methods import TracedMethod


def describe(
    traced: Sequence[TracedMethod], contexts: Mapping[str, BuildContext], store: BlobStore
) -> tuple[dict[str, schema.Method], list[GraphToCompile]]:
    """Describe the methods as documents, and put their graphs into ``store``.

    ``contexts`` are what the methods were traced from, by their functions.

    Returns:
        The documents by method name, and the graphs that the targets compile.

    Raises:
        UnsupportedError: the format cannot express something in a graph. Lists all such nodes with
            the user's lines.
    """
    graphs: dict[str, tuple[schema.Graph, GraphModule]] = {}
    own = contexts[""]
    served = _served(traced, has_modes=own.model is own.module and capture.has_modes(own.module))
    methods: dict[str, schema.Method] = {}
    for item in traced:
        name, context = item.plan.name, contexts[item.plan.function]
        forward, backward = _halves(item, graphs, store)
        methods[name] = structs.replace(
            item.convention.method,
            serves=served.get(name, []),
            forward=forward,
            backward=backward,
            captured_with=item.front_end,
            parameters=_positional_parameters(context.model) if name in served else [],
            defaults=_defaults(context) if name in served else {},
            identical=item.identical,
            distinct=item.distinct,
            autocast=item.plan.autocast,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            rng=item.rng,
            flags=dict(item.flags),
            lines=_lines(item),
            step=item.plan.role == "step",
            function=item.plan.function if name in served else "",
        )
    return methods, graphs_to_compile(methods, graphs)


def _halves(
    item: TracedMethod, graphs: dict[str, tuple[schema.Graph, GraphModule]], store: BlobStore
) -> tuple[schema.Descriptor, schema.Backward | None]:
    """Store the graphs of a method, and add them to ``graphs`` under their keys."""
    convention = item.convention

    def add(key: str, module: GraphModule) -> schema.Descriptor:
        converted = graph.from_fx(module, convention.shape_env)
        with as_a_loader():
            validate_graph(converted, key)
        graphs[key] = (converted, module)
        return store.add_compressed(codec.encode(converted), media_types.GRAPH)

    forward, described = add(f"{item.plan.name}.forward", convention.forward), convention.method.backward
    if convention.backward is None or described is None:
        return forward, None
    return forward, structs.replace(described, graph=add(f"{item.plan.name}.backward", convention.backward), second=item.second)


def _lines(item: TracedMethod) -> dict[str, str]:
    """Return the user's source lines by graph and node, for messages."""
    convention = item.convention
    halves = {"forward": convention.forward, "backward": convention.backward}
    return {
        f"{half}/{node}": line
        for half, module in halves.items()
        if module is not None
        for node, line in graph.lines(module).items()
    }


def describe_origins(
    traced: Sequence[TracedMethod], context: BuildContext, store: BlobStore
) -> tuple[schema.Origins, schema.Descriptor]:
    """Record the module and the source line of every node, and put the document into ``store``."""
    recorder = graph.OriginsRecorder(name for name, _ in context.module.named_modules(remove_duplicate=False))
    for item in traced:
        recorder.add(f"{item.plan.name}.forward", item.convention.forward)
        if item.convention.backward is not None:
            recorder.add(f"{item.plan.name}.backward", item.convention.backward)
    document = recorder.document()
    return document, store.add_compressed(codec.encode(document), media_types.ORIGINS)


@dataclass(frozen=True)
class ProgramParts:
    """The parts of a program other than the model's state.

    ``operators`` are the namespaces that are not torch's own. ``origins`` says where nodes come from.
    """

    methods: Mapping[str, schema.Method]
    operators: Sequence[str]
    weights: Sequence[schema.Descriptor]
    self_test: schema.Descriptor | None
    origins: schema.Descriptor | None
    optimizers: Mapping[str, schema.Optimizer]


def assemble(name: str, producer: schema.Producer, context: BuildContext, parts: ProgramParts) -> schema.Program:
    """Return the program, validated as a loader validates it."""
    state, methods = list(context.state), dict(parts.methods)
    modules, classes = describe_modules(context.module) if context.model is context.module else ([], [])
    program = schema.Program(
        format=FORMAT_VERSION,
        name=name,
        producer=producer,
        requirements=schema.Requirements(
            torch=">=2.9",
            operators=list(parts.operators),
            subclasses=subclasses.names(state, methods),
        ),
        state=state,
        methods=methods,
        weights=list(parts.weights),
        self_test=parts.self_test,
        origins=parts.origins,
        training=context.module.training,
        modules=modules,
        module_classes=classes,
        signature=describe_signature(context.model),
        pretrained=describe_pretrained(context.module) if context.model is context.module else None,
        assigned=[*context.assigned],
        optimizers=dict(parts.optimizers),
    )
    program = structs.replace(program, features=features.used(program))
    with as_a_loader():
        validate_program(program, "program")
    return program


@contextlib.contextmanager
def as_a_loader() -> Iterator[None]:
    """Report what a loader would reject as a build error, before anything is written."""
    try:
        yield
    except CorruptBundleError as error:
        raise UnsupportedError(
            "The model needs something that the bundle format cannot express.",
            error.problems,
            hint="Unknown symbols are sizes that depend on data (nonzero, boolean masks) and reach the backward graph.",
        ) from error


def _served(traced: Sequence[TracedMethod], *, has_modes: bool) -> dict[str, list[schema.Mode]]:
    """Return the caller's modes that each method serves.

    Of one function under one autocast, one method at most serves a mode. A method with gradients also serves its
    mode without gradients, unless the model does something else there. A plain function has no
    train and eval mode, nor has a module that ``torch.export`` made. There one graph serves both
    modes.
    """
    plans = {item.plan.name: item.plan for item in traced if item.plan.role == "call"}
    served = {name: [(plan.training, plan.grad)] for name, plan in plans.items()}

    def add(name: str, mode: tuple[bool, bool]) -> None:
        plan = plans[name]
        beside = [other for other, one in plans.items() if (one.function, one.autocast) == (plan.function, plan.autocast)]
        if not any(mode in served[other] for other in beside):
            served[name].append(mode)

    for item in traced:
        if item.plan.name in plans and item.plan.grad and not item.gradients_only:
            add(item.plan.name, (item.plan.training, False))
    if not has_modes:
        for name, modes in list(served.items()):
            for training, grad in list(modes):
                add(name, (not training, grad))
    return {name: [schema.Mode(*mode) for mode in modes] for name, modes in served.items()}


def _positional_parameters(model: Any) -> list[str]:
    return [p.name for p in parameters(model) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _defaults(context: BuildContext) -> dict[str, schema.Scalar]:
    """Return the literal defaults of parameters that the example leaves out.

    The graphs are specialised to them.
    """
    positional = set(_positional_parameters(context.model)[: len(context.args)])
    found: dict[str, schema.Scalar] = {}
    for parameter in parameters(context.model):
        if parameter.name in positional or parameter.name in context.kwargs or parameter.default is parameter.empty:
            continue
        literal = literal_argument(parameter.default)
        if literal is not NOT_A_LITERAL:
            found[parameter.name] = literal
    return found


def extra_operators(graphs: Sequence[GraphToCompile]) -> list[str]:
    """Return the namespaces of the graphs' operators that are not torch's own."""
    spaces = {node.op.partition(".")[0] for item in graphs for node in subgraphs.all_nodes(item.graph)}
    return sorted(spaces - {"aten", "prims", "builtin", "higher_order"})
