"""Selects the target of a bundle: the requested one, or the best that fits this machine and is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from msgspec import Struct

from ..archive.bundle import Bundle
from ..errors import DirectoryError, Problem, TargetError, TrustError
from ..format import schema
from ..options import LoadOptions
from ..trust import check_argument, check_trust, why_untrusted
from .backends import backend_of, unfit

if TYPE_CHECKING:
    from .protocols import Device


class Selection(Struct, frozen=True):
    """The chosen target, opened.

    ``reason`` says why it was chosen, and ``rejected`` why the others were not. ``fallback`` is a
    warning, or empty.
    """

    target: schema.Target
    device: Device
    reason: str
    rejected: dict[str, str] = {}
    fallback: str = ""


def select(bundle: Bundle, options: LoadOptions, unusable: Mapping[str, DirectoryError] | None = None) -> Selection:
    """Choose and open a target.

    Native targets are preferred, with the widest instruction set first. Those of some backends are
    used only if their device or such a target is requested. ``unusable`` are targets whose code
    could not be extracted.

    Raises:
        DirectoryError: native code was requested, or there is no other target, and it cannot be
            extracted here.
        TargetError: no target fits, or not the requested one; gives the reason for each.
        TrustArgumentError: the option ``trust`` has none of its forms.
        TrustError: the requested one is native, or calls third-party operators, and is not trusted.
    """
    backend = options.backend
    check_argument(options.trust)  # also for a bundle without native code
    device = _parse_device(options.device)
    candidates = _by_preference(bundle) if backend is None else _called(bundle, backend)
    if not candidates:
        have = ", ".join(bundle.targets)
        raise TargetError(f"This bundle has no target {backend!r}.", hint=f"It has: {have}.")
    rejected: dict[str, str] = {}
    failed = dict(unusable or {})
    trust_error: TrustError | None = None
    for target in candidates:
        if target.name in failed:
            rejected[target.name] = _without_directory(failed[target.name])
            continue
        try:
            reason = _mismatch(bundle, target, device, options)
            why = "" if reason else _why_allowed(bundle, target, options)
            if reason := reason or bundle.absence(target.name):
                rejected[target.name] = reason
                continue
            opened = _open(bundle, target, device, options)
        except TrustError as error:
            rejected[target.name] = f"not trusted: {error.summary}"
            trust_error = error
            continue
        except DirectoryError as error:
            failed[target.name], rejected[target.name] = error, _without_directory(error)
            continue
        asks = trust_error is not None and options.trust is None
        fallback = "" if is_native(target) else _fallback(bundle, rejected, device, backend, asks_trust=asks)
        return Selection(target, opened, why if backend is None else f"asked for; {why}", rejected, fallback)
    for refusal in (trust_error, *failed.values()):
        if refusal is not None:
            raise refusal
    raise TargetError(
        "No target of this bundle can run here." if backend is None else f"The target {backend!r} cannot run here.",
        [Problem(name, reason) for name, reason in rejected.items()],
        hint="Load with backend='portable' where the bundle has it, or build a target for this machine."
        if device is None
        else "Build a target for that device ('portable' runs on those of torch, 'xla' behind XLA), or load without device=.",
    )


def wanted(bundle: Bundle, options: LoadOptions) -> list[str]:
    """Return the targets whose layers a load with these options needs, from the bundle's documents alone.

    It is the first that :func:`select` would try to open. Each target's layers include the graphs
    and weights, so another one that is tried after it finds all but its own code.
    """
    candidates = _by_preference(bundle) if options.backend is None else _called(bundle, options.backend)
    device = _parse_device(options.device)
    for target in candidates:
        if _mismatch(bundle, target, device, options):
            continue
        if not is_native(target) or not _untrusted(bundle, options):
            return [target.name]
    return [target.name for target in candidates[:1]]  # select() says why it does not run


def unfit_for(bundle: Bundle, target: schema.Target, device: str | None) -> str:
    """Why a target that is named runs neither on ``device`` nor on this machine, or an empty string.

    Raises:
        TargetError: this torch does not have the device here.
    """
    return _mismatch(bundle, target, _parse_device(device), LoadOptions(device, target.name))


def _untrusted(bundle: Bundle, options: LoadOptions) -> str:
    """Why the bundle is not trusted; empty: it is."""
    return why_untrusted(bundle.digest, options.trust, bundle, options.vouched)


def _mismatch(bundle: Bundle, target: schema.Target, device: torch.device | None, options: LoadOptions) -> str:
    """Why a target fits neither the requested device nor this machine, or an empty string."""
    platform, untested = bundle.manifests[target.name].platform, options.allow_untested_torch
    return _device_mismatch(target, device, options.backend) or unfit(
        target, bundle.program, platform, device, allow_untested_torch=untested
    )


def _why_allowed(bundle: Bundle, target: schema.Target, options: LoadOptions) -> str:
    """Why a target that fits may run.

    Raises:
        TrustError: it is native, and is not trusted.
    """
    if not is_native(target):
        return "runs anywhere"
    return f"fits this machine; {check_trust(bundle.digest, options.trust, bundle, options.vouched)}"


def _open(bundle: Bundle, target: schema.Target, device: torch.device | None, options: LoadOptions) -> Device:
    """The device of a target that may run.

    Raises:
        TrustError: a portable target calls third-party operators, and the bundle is not trusted.
    """
    backend = backend_of(target)
    assert backend is not None, "unfit() rejects what no backend runs"
    bundle, untrusted = bundle.for_target(target.name), _untrusted(bundle, options)
    if (declared := bundle.program.requirements.operators) and not backend.is_native:
        from . import operators

        operators.require_consent(declared, options.operators, untrusted)
    return backend.open(bundle, target, device, untrusted)


def is_native(target: schema.Target) -> bool:
    """Whether a target's code must be trusted: all but graphs of torch's operators."""
    backend = backend_of(target)
    return backend is None or backend.is_native


def _device_mismatch(target: schema.Target, device: torch.device | None, named: str | None) -> str:
    """Why a target does not run on the requested device, or an empty string."""
    backend = backend_of(target)
    if backend is None:
        return ""
    if named is None and (reason := backend.unasked(target, device)):
        return reason
    return "" if device is None else backend.elsewhere(device)


def _by_preference(bundle: Bundle) -> list[schema.Target]:
    return sorted(bundle.targets.values(), key=lambda t: (not is_native(t), -_rank(t), t.name))


def _rank(target: schema.Target) -> int:
    backend = backend_of(target)
    return 0 if backend is None else backend.rank(target)


def _called(bundle: Bundle, backend: str) -> list[schema.Target]:
    """The target of that name, or else the targets of that kind."""
    if backend in bundle.targets:
        return [bundle.targets[backend]]
    return [target for target in _by_preference(bundle) if target.name.partition(":")[0] == backend]


def _without_directory(error: DirectoryError) -> str:
    return f"{error.summary} {error.hint}"


def _fallback(
    bundle: Bundle, rejected: dict[str, str], device: torch.device | None, backend: str | None, *, asks_trust: bool
) -> str:
    """Return the warning that portable graphs run where native code could not."""
    targets = bundle.targets
    native = {name: reason for name, reason in rejected.items() if not _device_mismatch(targets[name], device, None)}
    if not native or backend is not None:
        return ""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in native.items())
    how = f' If you trust whoever built it, load it with trust="{bundle.digest}".' if asks_trust else ""
    return f"The bundle runs on its portable graphs, which is slower than its native code ({reasons.removesuffix('.')}).{how}"


def _parse_device(device: str | torch.device | None) -> torch.device | None:
    """The device that was asked for, with its index.

    Raises:
        TargetError: it is none, or this torch has none of that kind here.
    """
    if device is None:
        return None
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise TargetError(f"device={device!r} is not a device.", hint=_available()) from error
    if device.type in ("cpu", "xla"):  # the backend of XLA says itself which devices it has
        return device
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, ImportError, RuntimeError) as error:  # as torch is built without it, or finds none
        reason = str(error).strip().partition("\n")[0].partition(". ")[0].removesuffix(".")
        raise TargetError(
            f"device={device}: torch {torch.__version__} has no such device here: {reason}.", hint=_available()
        ) from error


def _available() -> str:
    """The devices on which portable graphs can run in this process."""
    names = ["cpu"]
    if (kind := torch.accelerator.current_accelerator(check_available=True)) is not None:
        names += [f"{kind.type}:{index}" for index in range(torch.accelerator.device_count())]
    return f'Here are {", ".join(names)}. XLA devices ("xla") need a target for them.'
