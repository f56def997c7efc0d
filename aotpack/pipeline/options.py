"""The options of a build: their one list, and their checks.

The arguments of :func:`aotpack.build`, the command line and provenance follow the fields of
:class:`Options` (tests/test_options.py). Commands import this module before torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from aotpack_loader.errors import Problem

if TYPE_CHECKING:
    from aotpack_loader.format import schema

    from .progress import Observer

T = TypeVar("T")
RandomMode = Literal["default", "eager"]
FRONT_ENDS: Final = ("dynamo", "export", "trace")
UNNAMED_BUILDER: Final = "https://aotpack.dev/builder/unnamed"


@dataclass(frozen=True)
class MethodPlan:
    """A method to build, and the mode in which it is traced.

    ``train`` is train mode with gradients. ``infer`` is eval mode without gradients. ``autocast``
    is the element type of the autocast under which the method is traced (``bfloat16``), or null
    for none. ``role``: who calls it (:attr:`.schema.Method.role`).
    """

    name: str
    training: bool
    grad: bool
    autocast: schema.DType | None = None
    role: schema.Role = "call"

    @property
    def kind(self) -> str:
        """The method's name in :data:`METHODS`, without the suffix for its autocast."""
        return self.name.partition(".")[0]


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
    methods: Sequence[str] | None = _option(None, recorded=True)
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
    def optional(self) -> Collection[str]:
        """Methods that may fail."""
        return OPTIONAL_METHODS if self.methods is None else ()

    @property
    def plans(self) -> list[MethodPlan]:
        """The methods to build, each under each autocast."""
        methods = DEFAULT_METHODS if self.methods is None else self.methods
        return [_variant(METHODS[name], state, first=i == 0) for i, state in enumerate(self._autocasts) for name in methods]

    @property
    def _autocasts(self) -> Sequence[schema.DType | None]:
        if self.autocast is None:
            return (self.ambient,)
        words = _words(self.autocast)
        return tuple(dtype for word, dtype in AUTOCAST.items() if word in words)

    def recorded(self) -> dict[str, Any]:
        """Return what provenance states, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.metadata.get("recorded")}

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the options."""
        if self.autocast is not None:
            yield from _unknown("autocast", _words(self.autocast), AUTOCAST)
        yield from wrong_choices(vars(self))
        if self.memory_budget is not None and not 0 <= self.memory_budget <= 1:
            yield Problem("memory_budget", f"{self.memory_budget} is not between 0 and 1")
        if self.memory_budget is not None and self.partitioner == "default":
            yield Problem("memory_budget", "only the min-cut partitioner has one")
        if self.methods is not None:
            yield from _unknown("methods", self.methods, METHODS)
            twice = sorted({method for method in self.methods if self.methods.count(method) > 1})
            yield from (Problem("methods", f"{method!r} is listed twice") for method in twice)
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


def _unknown_value(name: str, value: object, known: Collection[str]) -> Problem:
    return Problem(name, f"{value!r} is not one of {', '.join(known)}")


def _words(autocast: str | Sequence[str]) -> list[str]:
    return [word.strip() for item in ([autocast] if isinstance(autocast, str) else autocast) for word in item.split(",")]


def _variant(plan: MethodPlan, autocast: schema.DType | None, *, first: bool) -> MethodPlan:
    """Return a method under an autocast. Methods of the first autocast keep their plain names."""
    word = next((word for word, dtype in AUTOCAST.items() if dtype == autocast), str(autocast))
    return replace(plan, name=plan.name if first else f"{plan.name}.{word}", autocast=autocast)
