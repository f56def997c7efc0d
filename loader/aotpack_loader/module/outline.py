"""What of a program makes its module: names, classes, modes and parameters, as plain values.

A load makes it from the documents, or reads it from the record of an earlier load
(:mod:`..opening.from_record`), which then needs no documents.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from ..value import Value

if TYPE_CHECKING:
    from ..format import schema

_LOSS_ARGUMENT = "num_items_in_batch"
KINDS = {
    "positional_only": Parameter.POSITIONAL_ONLY,
    "positional_or_keyword": Parameter.POSITIONAL_OR_KEYWORD,
    "var_positional": Parameter.VAR_POSITIONAL,
    "keyword_only": Parameter.KEYWORD_ONLY,
    "var_keyword": Parameter.VAR_KEYWORD,
}


class EntryOutline(Value):
    """A parameter or buffer, as ``schema.StateEntry`` has it."""

    __slots__ = ("name", "kind", "requires_grad", "persistent", "tied_to")  # noqa: RUF023 - in the order of the arguments

    name: str
    kind: str
    requires_grad: bool
    persistent: bool
    tied_to: str | None

    def __init__(self, name: str, kind: str, requires_grad: bool, persistent: bool, tied_to: str | None) -> None:
        self._set(name, kind, requires_grad, persistent, tied_to)


class ModuleOutline(Value):
    """A module of the original, as ``schema.Module`` has it; ``kind`` is the name of its class, ``base`` that of torch's."""

    __slots__ = (  # noqa: RUF023 - in the order of the arguments
        "name", "kind", "base", "names", "training", "trains", "evaluates", "text", "attributes", "same_as",
    )  # fmt: skip

    name: str
    kind: str
    base: str
    names: tuple[str, ...]
    training: bool
    trains: bool
    evaluates: bool
    text: str
    attributes: dict[str, Any]
    same_as: str | None

    def __init__(
        self,
        *,
        name: str,
        kind: str,
        base: str,
        names: list[str],
        training: bool,
        trains: bool,
        evaluates: bool,
        text: str,
        attributes: dict[str, Any],
        same_as: str | None,
    ) -> None:
        self._set(name, kind, base, tuple(names), training, trains, evaluates, text, attributes, same_as)


class ParameterOutline(Value):
    """A parameter of the original's ``forward``, as ``schema.Parameter`` has it."""

    __slots__ = ("name", "kind", "optional", "opaque", "default")  # noqa: RUF023 - in the order of the arguments

    name: str
    kind: str
    optional: bool
    opaque: bool
    default: Any

    def __init__(self, name: str, kind: str, optional: bool, opaque: bool, default: Any) -> None:
        self._set(name, kind, optional, opaque, default)


class Outline(Value):
    """What of a program makes its module. ``modules`` is empty where the original is no module.

    ``takes_loss_argument``: calls pass the number of items by which a trainer divides the loss.
    ``serves`` has for each method of the module's own call its modes: train (or eval) mode, gradients on (or off).
    ``functions`` has the same for each other function, by name. ``assigned`` are the buffers to which a call assigns.
    """

    __slots__ = (  # noqa: RUF023 - in the order of the arguments
        "state", "modules", "signature", "training", "takes_loss_argument", "serves", "functions", "pretrained", "assigned",
    )  # fmt: skip

    state: list[EntryOutline]
    modules: list[ModuleOutline]
    signature: list[ParameterOutline] | None
    training: bool
    takes_loss_argument: bool
    serves: dict[str, list[tuple[bool, bool]]]
    functions: dict[str, dict[str, list[tuple[bool, bool]]]]
    pretrained: schema.Pretrained | None
    assigned: list[str]

    def __init__(
        self,
        state: list[EntryOutline],
        modules: list[ModuleOutline],
        signature: list[ParameterOutline] | None,
        training: bool,
        takes_loss_argument: bool,
        serves: dict[str, list[tuple[bool, bool]]],
        functions: dict[str, dict[str, list[tuple[bool, bool]]]],
        pretrained: schema.Pretrained | None = None,
        assigned: list[str] | None = None,
    ) -> None:
        self._set(state, modules, signature, training, takes_loss_argument, serves, functions, pretrained, assigned or [])


def outline_of(program: schema.Program) -> Outline:
    """The outline of a program."""
    from ..devices.literals import plain_data  # with the documents' types, which a record does without

    serves: dict[str, dict[str, list[tuple[bool, bool]]]] = {"": {}}
    for name, method in program.methods.items():
        serves.setdefault(method.function, {})[name] = [(mode.training, mode.grad) for mode in method.serves]
    return Outline(
        [EntryOutline(e.name, e.kind, e.requires_grad, e.persistent, e.tied_to) for e in program.state],
        [_module(module, program.module_classes[module.kind], plain_data) for module in program.modules],
        None if program.signature is None else [_parameter(parameter, plain_data) for parameter in program.signature],
        program.training,
        _takes_loss_argument(program),
        serves.pop(""),
        serves,
        program.pretrained,
        program.assigned,
    )


def _module(module: schema.Module, kind: schema.ModuleClass, plain_data: Callable[[Any], Any]) -> ModuleOutline:
    return ModuleOutline(
        name=module.name,
        kind=kind.name,
        base=kind.base,
        names=kind.names,
        training=module.training,
        trains=module.trains,
        evaluates=module.evaluates,
        text=module.text,
        attributes={name: plain_data(value) for name, value in module.attributes.items()},
        same_as=module.same_as,
    )


def _parameter(parameter: schema.Parameter, plain_data: Callable[[Any], Any]) -> ParameterOutline:
    default = plain_data(parameter.default)
    return ParameterOutline(parameter.name, parameter.kind, parameter.optional, parameter.opaque, default)


def _takes_loss_argument(program: schema.Program) -> bool:
    """Whether the bundle was built for calls that pass the number of items by which the loss is divided."""
    from ..format import schema

    return any(
        _LOSS_ARGUMENT in tree.keys
        for method in program.methods.values()
        if isinstance(method.inputs, schema.TupleNode)
        for tree in method.inputs.items
        if isinstance(tree, schema.DictNode)
    )


def signature_of(parameters: list[ParameterOutline]) -> Signature | None:
    """The signature of ``forward`` with ``self``. None if the names are invalid; Python then reports its own."""
    shown = [Parameter("self", Parameter.POSITIONAL_ONLY)]
    try:
        shown += [_shown_parameter(parameter) for parameter in parameters]
        return Signature(shown)
    except ValueError:
        return None


def _shown_parameter(parameter: ParameterOutline) -> Parameter:
    default: Any = Parameter.empty
    if parameter.optional:
        default = ... if parameter.opaque else parameter.default
    return Parameter(parameter.name, KINDS[parameter.kind], default=default)
