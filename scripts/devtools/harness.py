"""Test cases, and how to run them.

A case is built and loaded. The same calls run in eager and on the bundle, and all effects that a
caller can see are compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import aotpack
from aotpack.capture import FRONT_ENDS
from aotpack.checking import calling
from aotpack.checking.calling import state_of
from aotpack.checking.observation import Observation, Tensors, copied, differences, tensors_in, with_parts
from aotpack_loader.errors import CheckError
from aotpack_loader.module.program import LoadedProgram
from devtools.native_calls import has_library, load_native

Model = torch.nn.Module | Callable[..., Any]
Inputs = tuple[tuple[Any, ...], dict[str, Any]] | tuple[tuple[Any, ...], dict[str, Any], Tensors]
MakeInputs = Callable[[int], Inputs]
"""Seed to ``(args, kwargs)``, or with a third item: further leaves whose gradients are compared."""
Make = Callable[[], tuple[Model, MakeInputs]]
Act = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

EXAMPLE_SEED = 0


class MismatchError(AssertionError):
    """Eager and the bundle differ."""


@dataclass(frozen=True)
class Call:
    """One call of a case.

    Args:
        seed: of the inputs and of the random numbers.
        training, grad: the caller's mode.
        inputs: other inputs than the case's, for a call with another pattern than the build's.
        prepare: changes the module first (freezes a parameter, loads a state).
        act: replaces forward and backward; called with the callable, returns what to compare.
        refused: the bundle must refuse this call before anything changes, with a message of this
            pattern.
    """

    seed: int = 1
    training: bool = True
    grad: bool = True
    inputs: MakeInputs | None = None
    prepare: Callable[[Any], None] | None = None
    act: Act | None = None
    refused: str = ""


TRAIN, INFER = Call(1), Call(2, training=False, grad=False)


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Args:
        name: in the words of the issue.
        make: the model or function, and its inputs by seed. Called once for eager and once for the
            build.
        dynamic_shapes: as for a build.
        grad_outputs: paths of the results that get gradients; None: all that can.
        calls: in order, on the same two modules, with gradients that accumulate.
        methods: as for a build.
        rng: as for a build. With ``eager`` the default generator's state after forward and backward
            is compared too.
        front_ends: as for a build.
        second_derivatives: as for a build.
        regional: as for a build.
        subclasses: as for a load.
        ignore: patterns of differences that another case of the table covers.
        works: eager must accept every call. Otherwise the bundle must raise an error where eager
            does.
    """

    name: str
    make: Make
    dynamic_shapes: Any = None
    grad_outputs: Sequence[str] | None = None
    calls: Sequence[Call] = (TRAIN, INFER)
    targets: Sequence[str] = ("portable",)
    methods: Sequence[str] = ("train", "infer")
    rng: Literal["default", "eager"] = "default"
    front_ends: Sequence[str] = FRONT_ENDS
    second_derivatives: bool = False
    regional: bool = False
    subclasses: Sequence[type] = ()
    ignore: str = ""
    works: bool = False


def build(case: Case, out: Path, *, check: bool = False) -> None:
    """Build the case's bundle at ``out`` from its example inputs.

    Without ``check``: a caller compares more calls by the same functions (:mod:`aotpack.checking`).
    """
    model, make_inputs = seeded(case.make)
    args, kwargs = make_inputs(EXAMPLE_SEED)[:2]
    aotpack.build(
        model,
        args,
        kwargs,
        out=out,
        targets=case.targets,
        dynamic_shapes=case.dynamic_shapes,
        methods=case.methods,
        rng=case.rng,
        front_ends=case.front_ends,
        second_derivatives=case.second_derivatives,
        regional=case.regional,
        cache="objects",
        check=check,
    )


def seeded(make: Make) -> tuple[Model, MakeInputs]:
    """The model of a case, with the same parameters every time."""
    torch.manual_seed(1234)
    return make()


def works_in_eager(case: Case) -> bool:
    """Whether eager accepts a program.

    Programs that eager refuses are not cases; each kind of refusal has a row of its own.
    """
    model, make_inputs = seeded(case.make)
    args = make_inputs(1)[0]
    try:
        out = model(*args)
        results = tensors_in(out, "out").values()
        roots = [x for x in (*results, *args) if x.requires_grad and x.grad_fn is not None]
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(x) for x in roots])
    except (RuntimeError, IndexError):
        return False
    return True


def run(case: Case, out: Path) -> None:
    """Build the case's bundle and compare every call.

    Raises:
        MismatchError: lists all that differs.
    """
    build(case, out)
    compare(case, out, case.targets[0])


def compare(case: Case, out: Path, backend: str) -> None:
    """Load the case's bundle and compare every call.

    Portable graphs are also compared with calls in native code, where it can make them.

    Raises:
        MismatchError: lists all that differs.
    """
    found = _compare(case, aotpack.load(out, backend=backend, subclasses=case.subclasses), "")
    if backend == "portable" and has_library():
        native = load_native(out, subclasses=case.subclasses)
        if "native" in native.aotpack.calls.values():
            found += _compare(case, native, "native ")
    checked = aotpack.load(out, backend=backend, check="full", subclasses=case.subclasses)
    found += _check_errors(case, checked, seeded(case.make)[1])
    if found:
        raise MismatchError("\n".join([case.name, *found]))


def _compare(case: Case, loaded: LoadedProgram, path: str) -> list[str]:
    """Differences from eager, for each call."""
    model, make_inputs = seeded(case.make)
    found: list[str] = []
    for number, call in enumerate(case.calls):
        make = call.inputs or make_inputs
        if call.refused:
            found += [f"{path}call {number}: {line}" for line in _refusal(case, call, loaded, make)]
            continue
        eager = observe(case, call, model, make)
        if case.works and eager.error is not None:
            found.append(f"{path}call {number}: eager itself raises {type(eager.error).__name__}: {eager.error}")
        lines = differences(eager, observe(case, call, loaded, make))
        found += [f"{path}call {number}: {line}" for line in lines if not case.ignore or not re.search(case.ignore, line)]
    return found


def _check_errors(case: Case, loaded: torch.nn.Module, make_inputs: MakeInputs) -> list[str]:
    """Errors of the same calls under ``check="full"``, which asserts everything the build assumed."""
    calls = [call for call in case.calls if not call.refused]
    errors = [observe(case, call, loaded, call.inputs or make_inputs).error for call in calls]
    return [f"check='full': {error}" for error in errors if isinstance(error, CheckError)]


def _refusal(case: Case, call: Call, loaded: torch.nn.Module, make: MakeInputs) -> list[str]:
    state = {name: copied(value) for name, value in with_parts(state_of(loaded)).items()}
    bundle = observe(case, call, loaded, make)
    if bundle.error is None:
        return ["should have been refused, works"]
    if not isinstance(bundle.error, aotpack.AotpackError):
        return [f"refused with {type(bundle.error).__name__}, which is none of ours: {bundle.error}"]
    if not re.search(call.refused, str(bundle.error)):
        return [f"refused with other words: {bundle.error}"]
    now = {name: copied(value) for name, value in with_parts(state_of(loaded)).items()}
    changed = [name for name, value in now.items() if not torch.equal(value, state[name])]
    return [f"refused, but {', '.join(changed)} changed"] if changed else []


def observe(case: Case, call: Call, model: Any, make_inputs: MakeInputs) -> Observation:
    """Call ``model`` and record what a caller sees, before and after the backward."""
    if isinstance(model, torch.nn.Module):
        model.train(call.training)
    if call.prepare is not None:
        call.prepare(model)
    args, kwargs, *more = make_inputs(call.seed)
    act = call.act
    called = model if act is None else lambda *args, **kwargs: act(model, args, kwargs)
    how = calling.Call(call.grad, 100 + call.seed, case.rng == "eager", case.grad_outputs if act is None else ())
    return calling.observe(how, calling.Arguments(args, kwargs, more[0] if more else {}), called, lambda: state_of(model))


# ---------------------------------------------------------------- words for tables

Spec = Callable[[torch.Generator], Any]


def t(*shape: int, dtype: torch.dtype = torch.float32) -> Spec:
    """A tensor that does not require grad."""
    return lambda generator: torch.randn(shape, generator=generator, dtype=dtype)


def g(*shape: int, dtype: torch.dtype = torch.float32) -> Spec:
    """A leaf that requires grad."""
    return lambda generator: torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()


def n(*shape: int, dtype: torch.dtype = torch.float32) -> Spec:
    """A result of earlier computation that requires grad. Its leaf is compared, too."""

    def make(generator: torch.Generator) -> torch.Tensor:
        leaf = torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
        result = leaf * 1
        result.source = leaf  # type: ignore[attr-defined]
        return result

    return make


def laid_out(spec: Spec, stride: Sequence[int]) -> Spec:
    """The same tensor with other strides. Gaps between its elements contain zeros."""

    def make(generator: torch.Generator) -> torch.Tensor:
        x = spec(generator)
        made = torch.empty_strided(x.shape, stride, dtype=x.dtype)
        made.untyped_storage().fill_(0)  # type: ignore[no-untyped-call]
        made = made.copy_(x)
        if x.is_leaf:
            return made.detach().requires_grad_(x.requires_grad)
        made.source = x.source
        return made

    return make


def ints(*shape: int, high: int = 5, dtype: torch.dtype = torch.int64) -> Spec:
    """Integers in ``0..high-1``."""
    return lambda generator: torch.randint(0, high, shape, generator=generator).to(dtype)


def const(value: Any) -> Spec:
    """The same value every time."""
    return lambda generator: value


@dataclass(frozen=True)
class Given:
    """Inputs by seed. ``build`` makes them together, so that they may alias."""

    build: Callable[[torch.Generator], tuple[tuple[Any, ...], dict[str, Any]]]

    def __call__(self, seed: int) -> Inputs:
        args, kwargs = self.build(torch.Generator().manual_seed(seed))
        given = tensors_in(args, "args") | tensors_in(kwargs, "kwargs")
        return args, kwargs, {f"{path}.source": x.source for path, x in given.items() if hasattr(x, "source")}


def inputs(*specs: Spec, **named: Spec) -> Given:
    """Inputs that are made one by one."""
    return Given(
        lambda generator: (
            tuple([spec(generator) for spec in specs]),
            {name: spec(generator) for name, spec in named.items()},
        )
    )


def together(build: Callable[[torch.Generator], tuple[Any, ...]]) -> Given:
    """Positional inputs that are made together, so that they may alias."""
    return Given(lambda generator: (build(generator), {}))


def case(name: str, function: Model, *specs: Spec | Given, **options: Any) -> Case:
    """A case of a plain function. Its inputs are specs or one ``Given``."""
    return Case(name, lambda: (function, _given(specs)), works=_EAGER_RAISES not in name, **options)


def module_case(name: str, factory: Callable[[], torch.nn.Module], *specs: Spec | Given, **options: Any) -> Case:
    """A case of a module, which is made once for eager and once for the build."""
    return Case(name, lambda: (factory(), _given(specs)), works=_EAGER_RAISES not in name, **options)


_EAGER_RAISES = "(eager raises"


def _given(specs: Sequence[Any]) -> Given:
    return specs[0] if len(specs) == 1 and isinstance(specs[0], Given) else inputs(*specs)
