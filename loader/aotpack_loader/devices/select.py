"""Selects the target of a bundle: the requested one, or the best that fits this machine and is trusted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch
from msgspec import Struct

from ..archive.bundle import Bundle
from ..errors import DirectoryError, Problem, TargetError, TrustError
from ..format import schema
from ..format.versions import torch_satisfies
from ..options import LoadOptions
from ..trust import check_argument, check_trust, why_untrusted
from . import cpuinfo

if TYPE_CHECKING:
    from .protocols import Device

PORTABLE = "portable"
XLA = "xla"
"""A kind of target, and of device: targets for that device run there alone, all others on the CPU alone."""


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

    Native targets are preferred, with the widest instruction set first. Targets for an XLA device
    are used only if that device or such a target is requested. ``unusable`` are targets whose code
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
        fallback = _fallback(bundle, rejected, backend) if target.kind == PORTABLE else ""
        return Selection(target, opened, why if backend is None else f"asked for; {why}", rejected, fallback)
    for refusal in (trust_error, *failed.values()):
        if refusal is not None:
            raise refusal
    raise TargetError(
        "No target of this bundle can run here." if backend is None else f"The target {backend!r} cannot run here.",
        [Problem(name, reason) for name, reason in rejected.items()],
        hint="Load with backend='portable' where the bundle has it, or build a target for this machine.",
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
        if target.kind == PORTABLE or not _untrusted(bundle, options):
            return [target.name]
    return [target.name for target in candidates[:1]]  # select() says why it does not run


def _untrusted(bundle: Bundle, options: LoadOptions) -> str:
    """Why the bundle is not trusted; empty: it is."""
    return why_untrusted(bundle.digest, options.trust, bundle, options.vouched)


def _mismatch(bundle: Bundle, target: schema.Target, device: torch.device | None, options: LoadOptions) -> str:
    """Why a target fits neither the requested device nor this machine, or an empty string."""
    platform, untested = bundle.manifests[target.name].platform, options.allow_untested_torch
    return _device_mismatch(target, device, options.backend) or unfit(
        target, bundle.program, platform, allow_untested_torch=untested
    )


def _why_allowed(bundle: Bundle, target: schema.Target, options: LoadOptions) -> str:
    """Why a target that fits may run.

    Raises:
        TrustError: it is native, and is not trusted.
    """
    if target.kind == PORTABLE:
        return "runs anywhere"
    return f"fits this machine; {check_trust(bundle.digest, options.trust, bundle, options.vouched)}"


def _open(bundle: Bundle, target: schema.Target, device: torch.device | None, options: LoadOptions) -> Device:
    """The device of a target that may run. Modules of other kinds of targets are not imported.

    Raises:
        TrustError: a portable target calls third-party operators, and the bundle is not trusted.
    """
    if target.kind == PORTABLE:
        from .portable import PortableDevice

        untrusted = _untrusted(bundle, options)
        _require_consent(bundle, options.operators, untrusted)
        return PortableDevice(bundle, _CPU, untrusted)
    if _is_compiled_by_xla(target):
        from .pjrt import PjrtDevice

        return PjrtDevice(bundle, target)
    if target.kind == XLA:
        from .xla import XlaDevice

        return XlaDevice(bundle, target, device or torch.device(XLA))
    from .aoti import AotiDevice

    return AotiDevice(bundle, target, _CPU)


def _device_mismatch(target: schema.Target, device: torch.device | None, backend: str | None) -> str:
    """Why a target does not run on the requested device, or an empty string."""
    if _is_compiled_by_xla(target) and backend is None:
        return f"runs where it is asked for: load with backend={target.name!r}"
    if device is None:
        return "runs on an XLA device: load with device='xla'" if target.device == XLA and backend is None else ""
    if (target.device == XLA) == (device.type == XLA):
        return ""
    return f"runs on {'an XLA device' if target.device == XLA else 'the CPU'}, and device={str(device)!r} was asked for"


def _require_consent(bundle: Bundle, agreed: Collection[str], untrusted: str) -> None:
    declared = bundle.program.requirements.operators
    if declared:
        from . import operators

        operators.require_consent(declared, agreed, untrusted)


def unfit(
    target: schema.Target,
    program: schema.Program,
    platform: schema.Platform | None = None,
    *,
    allow_untested_torch: bool = False,
) -> str:
    """Why ``target`` cannot run on this machine, or an empty string.

    ``platform`` comes from its manifest's descriptor.
    """
    if not torch_satisfies(torch.__version__, program.requirements.torch):
        return f"needs torch {program.requirements.torch}, this is {torch.__version__}"
    if target.kind == PORTABLE:
        return ""
    if target.kind == XLA:
        from . import xla

        return xla.unfit(target) or (_unlike_machine(target, platform) if target.device == "cpu" else "")
    if target.kind != "aoti":
        return f"this loader does not know code of kind {target.kind!r}"
    if target.device != "cpu":
        return f"this loader has no device {target.device!r}"
    if reason := _unlike_machine(target, platform):
        return reason
    if torch_satisfies(torch.__version__, target.torch):
        return ""
    from .torch_releases import unlike_torch  # rarely needed

    return unlike_torch(target, allow_untested=allow_untested_torch)


def _unlike_machine(target: schema.Target, platform: schema.Platform | None) -> str:
    """What the target's code needs and this machine lacks, or an empty string."""
    if platform is not None and platform.os != cpuinfo.system():
        return f"built for {platform.os}, this machine runs {cpuinfo.system()}"
    if target.architecture != cpuinfo.architecture():
        return f"built for {target.architecture}, this machine is {cpuinfo.architecture()}"
    missing = sorted(set(target.cpu_features) - cpuinfo.features())
    if missing:
        return f"needs {target.instruction_set}; this processor lacks {', '.join(missing)}"
    return ""


def _by_preference(bundle: Bundle) -> list[schema.Target]:
    return sorted(bundle.targets.values(), key=lambda t: (t.kind == PORTABLE, -len(t.cpu_features), t.name))


def _called(bundle: Bundle, backend: str) -> list[schema.Target]:
    """The target of that name, or else the targets of that kind."""
    if backend in bundle.targets:
        return [bundle.targets[backend]]
    return [target for target in _by_preference(bundle) if target.name.partition(":")[0] == backend]


def _is_compiled_by_xla(target: schema.Target) -> bool:
    """Whether a target holds executables of XLA for one platform.

    They run only on request, because calls through jaxlib cost more than those of a ``cpu`` target.
    """
    return target.kind == XLA and target.device != XLA


def _without_directory(error: DirectoryError) -> str:
    return f"{error.summary} {error.hint}"


def _fallback(bundle: Bundle, rejected: dict[str, str], backend: str | None) -> str:
    native = {name: reason for name, reason in rejected.items() if bundle.targets[name].kind != XLA}
    if not native or backend is not None:
        return ""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in native.items())
    return f"The bundle runs on its portable graphs, which is slower than its native code ({reasons.removesuffix('.')})."


_CPU = torch.device("cpu")


def _parse_device(device: str | torch.device | None) -> torch.device | None:
    if device is None:
        return None
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise TargetError(f"device={device!r} is not a device.", hint="Bundles run on 'cpu' and 'xla'.") from error
    if device.type not in ("cpu", XLA):
        raise TargetError(f"This loader runs bundles on the CPU and on XLA devices; device={device} was asked for.")
    return device
