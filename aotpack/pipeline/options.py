"""The options of a build: their one list, and their checks.

The arguments of :func:`aotpack.build`, the command line and provenance follow the fields of
:class:`Options` (tests/test_options.py). Commands import this module before torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from aotpack_loader.errors import Problem

from ..model.method import FORWARD, Method

if TYPE_CHECKING:
    from aotpack_loader.format import schema

    from .progress import Observer

T = TypeVar("T")
RandomMode = Literal["default", "eager"]
FRONT_ENDS: Final = ("dynamo", "export", "trace")
_LONGEST: Final = 255
"""Letters of the name of a method."""
UNNAMED_BUILDER: Final = "https://aotpack.dev/builder/unnamed"


@dataclass(frozen=True)
class MethodPlan:
    """A method to build, and the mode in which it is traced.

    ``train`` is train mode with gradients. ``infer`` is eval mode without gradients. ``autocast``
    is the element type of the autocast under which the method is traced (``bfloat16``), or null
    for none. ``role``: who calls it (:attr:`.schema.Method.role`). ``function``: the function of the model
    that it calls (:attr:`.schema.Method.function`). ``optional``: a build that cannot make it leaves it out.
    """

    name: str
    training: bool
    grad: bool
    autocast: schema.DType | None = None
    role: schema.Role = "call"
    function: str = ""
    optional: bool = False

    @property
    def kind(self) -> str:
        """The method's name in :data:`METHODS`, without its function and the suffix for its autocast."""
        return self.name.removeprefix(f"{self.function}.").partition(".")[0]


METHODS = {plan.name: plan for plan in (
    MethodPlan("train", training=True, grad=True),
    MethodPlan("infer", training=False, grad=False),
    MethodPlan("eval", training=False, grad=True),
)}  # fmt: skip
"""The methods that a build knows.

``eval`` has gradients of the eval-mode graph (frozen BatchNorm, no dropout).
"""


AUTOCAST: dict[str, schema.DType | None] = {"none": None, "bf16": "bfloat16", "fp16": "float16"}
"""The values of ``autocast`` with their element types.

A bundle with several variants has its methods in this order.
"""

DEFAULT_METHODS = ("train", "infer")
OPTIONAL_METHODS = frozenset({"infer"})
"""Default methods that training does not need.

A build that cannot make them leaves them out with a warning.
"""


def _option(default: T, *, recorded: bool = False, choices: Sequence[str] = ()) -> T:
    """A field of :class:`Options`. ``recorded``: provenance states it. ``choices``: its values, if these are few."""
    return field(default=default, metadata={"recorded": recorded, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a build was asked for. Each option is as :func:`aotpack.build` explains it.

    ``ambient`` is no option: the element type of the autocast around the build, null for none.
    """

    out: str | Path
    targets: Sequence[str] = _option(("cpu",), recorded=True)
    dynamic_shapes: Any = None
    partitioner: str = _option("min-cut", recorded=True, choices=("min-cut", "default"))
    memory_budget: float | None = _option(None, recorded=True)
    methods: Sequence[str] | Mapping[str, Method] | None = _option(None, recorded=True)
    front_ends: Sequence[str] = _option(FRONT_ENDS, recorded=True)
    rng: RandomMode = _option("default", recorded=True, choices=("default", "eager"))  # noqa: RUF009 - a field
    branches: str = _option("refuse", recorded=True, choices=("refuse", "example"))
    autocast: str | Sequence[str] | None = _option(None, recorded=True)
    check: bool = _option(True, recorded=True)
    self_test: bool = _option(False, recorded=True)
    name: str | None = _option(None, recorded=True)
    cache: bool | Literal["objects"] = True
    layout: Literal["file", "directory"] = _option("file", choices=("file", "directory"))
    second_derivatives: bool = _option(False, recorded=True)
    specializations: Sequence[Mapping[str, int]] = _option((), recorded=True)
    optimizer: Any = None
    warm_up: bool = _option(False, recorded=True)
    regional: bool | None = _option(None, recorded=True)
    tune: bool = _option(False, recorded=True)
    allow_untested_torch: bool = _option(False, recorded=True)
    provenance: bool = False
    sbom: bool = False
    builder: str = UNNAMED_BUILDER
    entry: str | Path | None = None
    observer: Observer | None = None

    ambient: schema.DType | None = None

    @property
    def exact_random(self) -> bool:
        """Whether random numbers are eager's."""
        return self.rng == "eager"

    @property
    def functions(self) -> Mapping[str, Method]:
        """The functions of the model that are built beside its call, by name."""
        methods = self.methods if isinstance(self.methods, Mapping) else {}
        return {name: method for name, method in methods.items() if name != FORWARD}

    @property
    def plans(self) -> list[MethodPlan]:
        """The methods to build, each under each autocast."""
        if not isinstance(self.methods, Mapping):
            return self._plans("", self.methods)
        asked = self.methods.items()
        return [plan for name, one in asked for plan in self._plans("" if name == FORWARD else name, one.modes)]

    def _plans(self, function: str, modes: Sequence[str] | None) -> list[MethodPlan]:
        """The methods of a function of the model."""
        return [
            _variant(METHODS[name], state, first=i == 0, function=function, optional=modes is None and name in OPTIONAL_METHODS)
            for i, state in enumerate(self._autocasts)
            for name in (DEFAULT_METHODS if modes is None else modes)
        ]

    @property
    def _autocasts(self) -> Sequence[schema.DType | None]:
        if self.autocast is None:
            return (self.ambient,)
        words = _words(self.autocast)
        return tuple(dtype for word, dtype in AUTOCAST.items() if word in words)

    def recorded(self) -> dict[str, Any]:
        """Return what provenance states, by name."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.metadata.get("recorded")}
        if isinstance(self.methods, Mapping):
            found["methods"] = {name: method.modes for name, method in self.methods.items()}
        return found

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the options."""
        if self.autocast is not None:
            yield from _unknown("autocast", _words(self.autocast), AUTOCAST)
        yield from wrong_choices(vars(self))
        if self.memory_budget is not None and not 0 <= self.memory_budget <= 1:
            yield Problem("memory_budget", f"{self.memory_budget} is not between 0 and 1")
        if self.memory_budget is not None and self.partitioner == "default":
            yield Problem("memory_budget", "only the min-cut partitioner has one")
        if isinstance(self.methods, Mapping):
            yield from _wrong_methods(self.methods)
        elif self.methods is not None:
            yield from _wrong_modes("methods", self.methods)
        yield from _unknown("front_ends", self.front_ends, FRONT_ENDS)


FIELDS: Final = {one.name: one for one in fields(Options) if one.name != "ambient"}
"""The options by name."""


def wrong_choices(given: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the options in ``given`` whose values are none of their choices."""
    for name, one in FIELDS.items():
        choices = one.metadata.get("choices")
        if choices and name in given and given[name] not in choices:
            yield _unknown_value(name, given[name], choices)


def _unknown(name: str, values: Sequence[str], known: Collection[str]) -> Iterator[Problem]:
    """Yield the values of a list that are not known, or that there are none."""
    yield from (_unknown_value(name, value, known) for value in values if value not in known)
    if not values:
        yield Problem(name, "at least one is needed")


def _wrong_methods(methods: Mapping[Any, Any]) -> Iterator[Problem]:
    """Yield what is wrong with methods of the model."""
    if not methods:
        yield Problem("methods", "at least one is needed")
    for name, method in methods.items():
        at = f"methods[{name!r}]"
        if not isinstance(name, str) or not name.isidentifier():
            yield Problem(at, "is no name of a method: it is not an identifier of Python")
        elif len(name) > _LONGEST:
            yield Problem(
                f"methods[{name[:20]!r}…]", f"is no name of a method: it has {len(name):,} letters, more than {_LONGEST}"
            )
        if not isinstance(method, Method):
            yield Problem(at, f"expected an aotpack.Method(function, args), got {type(method).__name__}")
            continue
        function: Any = method.function
        if not isinstance(function, str) and not callable(function):
            yield Problem(at, f"function is a {type(function).__name__}, no function of the model and no name of one")
        if not isinstance(args := cast("Any", method.args), tuple):
            yield Problem(at, f"args: expected a tuple of example inputs, got {type(args).__name__}")
        if name == FORWARD and function != FORWARD:
            yield Problem(at, "is the model's own call: its function is 'forward'")
        if method.modes is not None:
            yield from _wrong_modes(f"{at}.modes", method.modes)


def _wrong_modes(where: str, modes: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with a list of :data:`METHODS`."""
    yield from _unknown(where, modes, METHODS)
    twice = sorted({mode for mode in modes if modes.count(mode) > 1})
    yield from (Problem(where, f"{mode!r} is listed twice") for mode in twice)


def _unknown_value(name: str, value: object, known: Collection[str]) -> Problem:
    return Problem(name, f"{value!r} is not one of {', '.join(known)}")


def _words(autocast: str | Sequence[str]) -> list[str]:
    return [word.strip() for item in ([autocast] if isinstance(autocast, str) else autocast) for word in item.split(",")]


def _variant(plan: MethodPlan, autocast: schema.DType | None, *, first: bool, function: str, optional: bool) -> MethodPlan:
    """Return a method of a function under an autocast. Methods of the first autocast keep their plain names."""
    word = next((word for word, dtype in AUTOCAST.items() if dtype == autocast), str(autocast))
    name = plan.name if first else f"{plan.name}.{word}"
    return replace(plan, name=f"{function}.{name}" if function else name, autocast=autocast, function=function, optional=optional)
