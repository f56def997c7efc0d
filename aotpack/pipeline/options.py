"""What a build is asked for, beside the model and its example inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
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
    """A method to build: the mode it is traced in. ``train`` keeps gradients in train mode, ``infer`` neither.

    ``autocast`` is the element type of the autocast that it is traced under (``bfloat16``); null: none.
    """

    name: str
    training: bool
    grad: bool
    autocast: schema.DType | None = None

    @property
    def kind(self) -> str:
        """Its name in :data:`METHODS`, whatever autocast it is traced under."""
        return self.name.partition(".")[0]


METHODS = {plan.name: plan for plan in (
    MethodPlan("train", training=True, grad=True),
    MethodPlan("infer", training=False, grad=False),
    MethodPlan("eval", training=False, grad=True),
)}  # fmt: skip
"""Methods a build knows. ``eval`` is optional: gradients through the eval-mode graph (frozen BatchNorm, no dropout)."""


AUTOCAST: dict[str, schema.DType | None] = {"none": None, "bf16": "bfloat16", "fp16": "float16"}
"""What ``autocast`` takes, and the element type of each; in the order of the methods of a bundle that has several."""

DEFAULT_METHODS = ("train", "infer")
OPTIONAL_METHODS = frozenset({"infer"})
"""Default methods that a build leaves out, with a warning, where they cannot be built: training does not need them."""


@dataclass(frozen=True)
class Options:
    """How the methods are traced and split; each as :func:`aotpack.build` takes it. ``optional``: methods that may fail.

    ``autocast`` are the element types of the autocasts that each method is built for; null: none.
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
    autocast: Sequence[schema.DType | None] = (None,)

    @property
    def exact_random(self) -> bool:
        return self.rng == "eager"

    @property
    def plans(self) -> list[MethodPlan]:
        return [_variant(METHODS[name], state, first=i == 0) for i, state in enumerate(self.autocast) for name in self.methods]


def _variant(plan: MethodPlan, autocast: schema.DType | None, *, first: bool) -> MethodPlan:
    """A method under an autocast: those of the first have the plain names."""
    word = next((word for word, dtype in AUTOCAST.items() if dtype == autocast), str(autocast))
    return replace(plan, name=plan.name if first else f"{plan.name}.{word}", autocast=autocast)


def autocast_states(asked: str | Sequence[str] | None, current: schema.DType | None) -> tuple[schema.DType | None, ...]:
    """The element types that ``autocast`` asks for, ``current`` is that of the caller's autocast.

    Raises:
        BuildError: there is no such autocast.
    """
    if asked is None:
        return (current,)
    words = [word.strip() for item in ([asked] if isinstance(asked, str) else asked) for word in item.split(",")]
    unknown = [word for word in words if word not in AUTOCAST]
    if unknown or not words:
        problems = [Problem("autocast", f"{word!r} is none of {', '.join(AUTOCAST)}") for word in unknown]
        raise BuildError("The build's options are not valid.", problems or [Problem("autocast", "at least one is needed")])
    return tuple(dtype for word, dtype in AUTOCAST.items() if word in words)


def check_options(args: Any, options: Options, layout: str) -> None:
    """Refuse what no build takes, all at once.

    Raises:
        BuildError: an option has none of its values, or ``args`` is no tuple.
    """
    methods, front_ends = options.methods, options.front_ends
    problems = []
    if not isinstance(args, tuple):
        problems.append(Problem("args", f"expected a tuple of positional arguments, got {type(args).__name__}"))
    if options.partitioner not in PARTITIONERS:
        problems.append(Problem("partitioner", f"{options.partitioner!r} is none of {', '.join(PARTITIONERS)}"))
    if options.memory_budget is not None and not 0 <= options.memory_budget <= 1:
        problems.append(Problem("memory_budget", f"{options.memory_budget} is not between 0 and 1"))
    if options.memory_budget is not None and options.partitioner == "default":
        problems.append(Problem("memory_budget", "only the min-cut partitioner has one"))
    unknown = [method for method in methods if method not in METHODS]
    problems += [Problem("methods", f"{method!r} is none of {', '.join(METHODS)}") for method in unknown]
    problems += [Problem("methods", f"{method!r} is there twice") for method in sorted(set(methods)) if methods.count(method) > 1]
    if not methods:
        problems.append(Problem("methods", "at least one is needed"))
    known = capture.FRONT_ENDS
    problems += [Problem("front_ends", f"{name!r} is none of {', '.join(known)}") for name in front_ends if name not in known]
    if not front_ends:
        problems.append(Problem("front_ends", "at least one is needed"))
    if options.rng not in RNG_MODES:
        problems.append(Problem("rng", f"{options.rng!r} is none of {', '.join(RNG_MODES)}"))
    if options.branches not in BRANCHES:
        problems.append(Problem("branches", f"{options.branches!r} is none of {', '.join(BRANCHES)}"))
    problems += layout_problems(layout)
    if problems:
        raise BuildError("The build's options are not valid.", problems)


def layout_problems(layout: str) -> list[Problem]:
    """What is wrong with the layout of the bundle to be written."""
    return [] if layout in LAYOUTS else [Problem("layout", f"{layout!r} is none of {', '.join(LAYOUTS)}")]
