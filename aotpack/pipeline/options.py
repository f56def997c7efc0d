"""The options of a build, other than the model and its example inputs, and their checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from aotpack_loader.errors import BuildError, Problem
from aotpack_loader.format import schema

from .. import capture

RandomMode = Literal["default", "eager"]
PARTITIONERS = ("min-cut", "default")
RNG_MODES: tuple[RandomMode, ...] = ("default", "eager")
BRANCHES = ("refuse", "example")
LAYOUTS = ("file", "directory")


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


@dataclass(frozen=True)
class Options:
    """How the methods are traced and partitioned.

    Each option is as :func:`aotpack.build` takes it. ``optional`` are the methods that may fail.
    ``autocast`` has the element types of the autocasts that each method is built for, with null
    for none. With ``regional`` null, layers become regions where they can.
    """

    methods: Sequence[str] = DEFAULT_METHODS
    partitioner: str = "min-cut"
    memory_budget: float | None = None
    front_ends: Sequence[str] = capture.FRONT_ENDS
    rng: RandomMode = "default"
    branches: str = "refuse"
    second_derivatives: bool = False
    optional: Collection[str] = ()
    warm_up: bool = False
    regional: bool | None = False
    autocast: Sequence[schema.DType | None] = (None,)

    @property
    def exact_random(self) -> bool:
        return self.rng == "eager"

    @property
    def plans(self) -> list[MethodPlan]:
        return [_variant(METHODS[name], state, first=i == 0) for i, state in enumerate(self.autocast) for name in self.methods]


def _variant(plan: MethodPlan, autocast: schema.DType | None, *, first: bool) -> MethodPlan:
    """Return a method under an autocast. Methods of the first autocast keep their plain names."""
    word = next((word for word, dtype in AUTOCAST.items() if dtype == autocast), str(autocast))
    return replace(plan, name=plan.name if first else f"{plan.name}.{word}", autocast=autocast)


def options_of(given: Mapping[str, Any], current: schema.DType | None) -> Options:
    """Return the options among the arguments of ``aotpack.build``, after a check.

    ``current`` is the element type of the caller's autocast. The command line has no ``args`` yet.

    Raises:
        BuildError: an option has an unknown value, or ``args`` is not a tuple. Lists all problems.
    """
    states, problems = _autocast_states(given["autocast"], current)
    chosen = {field.name: given[field.name] for field in fields(Options) if field.name in given}
    options = Options(**chosen | {"autocast": states})
    if given["methods"] is None:
        options = replace(options, methods=DEFAULT_METHODS, optional=OPTIONAL_METHODS)
    problems += [*_problems(given.get("args", ()), options), *layout_problems(given["layout"])]
    if problems:
        raise BuildError("The build's options are not valid.", problems)
    return options


def _autocast_states(
    asked: str | Sequence[str] | None, current: schema.DType | None
) -> tuple[tuple[schema.DType | None, ...], list[Problem]]:
    """Return the element types that ``autocast`` asks for, and what is wrong with it."""
    if asked is None:
        return (current,), []
    words = [word.strip() for item in ([asked] if isinstance(asked, str) else asked) for word in item.split(",")]
    problems = [Problem("autocast", f"{word!r} is not one of {', '.join(AUTOCAST)}") for word in words if word not in AUTOCAST]
    if not words:
        problems.append(Problem("autocast", "at least one is needed"))
    return tuple(dtype for word, dtype in AUTOCAST.items() if word in words), problems


def _problems(args: Any, options: Options) -> list[Problem]:
    """Return what is wrong with the options."""
    methods, front_ends = options.methods, options.front_ends
    problems: list[Problem] = []
    if not isinstance(args, tuple):
        problems.append(Problem("args", f"expected a tuple of positional arguments, got {type(args).__name__}"))
    if options.partitioner not in PARTITIONERS:
        problems.append(Problem("partitioner", f"{options.partitioner!r} is not one of {', '.join(PARTITIONERS)}"))
    if options.memory_budget is not None and not 0 <= options.memory_budget <= 1:
        problems.append(Problem("memory_budget", f"{options.memory_budget} is not between 0 and 1"))
    if options.memory_budget is not None and options.partitioner == "default":
        problems.append(Problem("memory_budget", "only the min-cut partitioner has one"))
    unknown = [method for method in methods if method not in METHODS]
    problems += [Problem("methods", f"{method!r} is not one of {', '.join(METHODS)}") for method in unknown]
    problems += [
        Problem("methods", f"{method!r} is listed twice") for method in sorted(set(methods)) if methods.count(method) > 1
    ]
    if not methods:
        problems.append(Problem("methods", "at least one is needed"))
    known = capture.FRONT_ENDS
    problems += [Problem("front_ends", f"{name!r} is not one of {', '.join(known)}") for name in front_ends if name not in known]
    if not front_ends:
        problems.append(Problem("front_ends", "at least one is needed"))
    if options.rng not in RNG_MODES:
        problems.append(Problem("rng", f"{options.rng!r} is not one of {', '.join(RNG_MODES)}"))
    if options.branches not in BRANCHES:
        problems.append(Problem("branches", f"{options.branches!r} is not one of {', '.join(BRANCHES)}"))
    return problems


def layout_problems(layout: str) -> list[Problem]:
    """Return what is wrong with the ``layout`` option."""
    return [] if layout in LAYOUTS else [Problem("layout", f"{layout!r} is not one of {', '.join(LAYOUTS)}")]
