"""The kinds of targets that this loader runs: what each needs of the machine, and what opens it.

To add a kind, add a class to :data:`BACKENDS`. :mod:`.select` knows no kind by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

import torch

from ..archive.bundle import Bundle
from ..format import schema
from ..format.versions import torch_satisfies
from . import cpuinfo

if TYPE_CHECKING:
    from .protocols import Device

_CPU: Final = torch.device("cpu")
_WITHOUT_MEMORY: Final = ("xla", "meta", "lazy")


class Backend(ABC):
    """Targets of one kind. The modules that run their code are imported when a target is opened.

    Attributes:
        device_type: the type of torch device that holds their tensors.
        place: the device in messages.
        is_native: whether their code must be trusted. A target without native code fits any machine and comes last.
    """

    device_type = "cpu"
    place = "the CPU"
    is_native = True

    def runs(self, target: schema.Target) -> bool:
        """Whether targets of this kind for that target's device are this backend's."""
        return target.device == self.device_type

    def elsewhere(self, device: torch.device) -> str:
        """Why targets of this kind do not run on a device that the caller asks for, or an empty string."""
        if device.type == self.device_type:
            return ""
        return f"runs on {self.place}, and device={str(device)!r} was asked for"

    def unasked(self, target: schema.Target, device: torch.device | None) -> str:
        """Why a target is not chosen unless the caller names it; ``device`` is the caller's. Empty: it may be chosen."""
        return ""

    def rank(self, target: schema.Target) -> int:
        """How well a target uses a machine that it fits, among those of one kind and device. The highest is tried first."""
        return len(target.cpu_features)

    @abstractmethod
    def unfit(
        self, target: schema.Target, platform: schema.Platform | None, device: torch.device | None, *, allow_untested_torch: bool
    ) -> str:
        """Why this machine, or this torch, cannot run a target, or an empty string. ``device`` is the caller's."""

    @abstractmethod
    def open(self, bundle: Bundle, target: schema.Target, device: torch.device | None, untrusted: str) -> Device:
        """Open a target that fits; ``untrusted`` says why the bundle is not trusted."""


class _Portable(Backend):
    """Graphs of torch's operators, for every device for which torch has kernels."""

    is_native = False

    def elsewhere(self, device: torch.device) -> str:
        if device.type in _WITHOUT_MEMORY:
            return f"needs tensors with memory and strides, which device={str(device)!r} does not have"
        return ""

    def runs(self, target: schema.Target) -> bool:
        return True

    def unfit(
        self, target: schema.Target, platform: schema.Platform | None, device: torch.device | None, *, allow_untested_torch: bool
    ) -> str:
        return ""

    def open(self, bundle: Bundle, target: schema.Target, device: torch.device | None, untrusted: str) -> Device:
        from .portable import PortableDevice

        return PortableDevice(bundle, _CPU if device is None else device, untrusted)


class _Aoti(Backend):
    def unfit(
        self, target: schema.Target, platform: schema.Platform | None, device: torch.device | None, *, allow_untested_torch: bool
    ) -> str:
        if reason := _unlike_machine(target, platform):
            return reason
        if torch_satisfies(torch.__version__, target.torch):
            return ""
        from .torch_releases import unlike_torch  # rarely needed

        return unlike_torch(target, allow_untested=allow_untested_torch)

    def open(self, bundle: Bundle, target: schema.Target, device: torch.device | None, untrusted: str) -> Device:
        from .aoti import AotiDevice

        return AotiDevice(bundle, target, _CPU)


class _Cuda(_Aoti):
    """Kernels for NVIDIA's GPUs, and code of the processor that launches them."""

    device_type = "cuda"
    place = "NVIDIA's GPUs"

    def rank(self, target: schema.Target) -> int:
        from . import cuda

        return cuda.rank(target)

    def unasked(self, target: schema.Target, device: torch.device | None) -> str:
        return "" if device else "runs on a GPU: load with device='cuda'"

    def unfit(
        self, target: schema.Target, platform: schema.Platform | None, device: torch.device | None, *, allow_untested_torch: bool
    ) -> str:
        from . import cuda

        return super().unfit(target, platform, device, allow_untested_torch=allow_untested_torch) or cuda.unfit(target, device)

    def open(self, bundle: Bundle, target: schema.Target, device: torch.device | None, untrusted: str) -> Device:
        from .cuda import CudaDevice

        return CudaDevice(bundle, target, device)


class _Xla(Backend):
    """Computations that the device's own compiler compiles at load."""

    device_type = "xla"
    place = "an XLA device"

    def unasked(self, target: schema.Target, device: torch.device | None) -> str:
        return "" if device else "runs on an XLA device: load with device='xla'"

    def unfit(
        self, target: schema.Target, platform: schema.Platform | None, device: torch.device | None, *, allow_untested_torch: bool
    ) -> str:
        from . import xla

        return xla.unfit(target)

    def open(self, bundle: Bundle, target: schema.Target, device: torch.device | None, untrusted: str) -> Device:
        from .xla import XlaDevice

        return XlaDevice(bundle, target, device or torch.device(self.device_type))


class _Pjrt(Backend):
    """Executables of XLA for one platform. They run on request alone: calls through jaxlib cost more than AOTInductor's.

    Where the machine or a release is not the compiling one, XLA's compiler for CPUs compiles their programs at load.
    """

    def runs(self, target: schema.Target) -> bool:
        return target.device != _Xla.device_type  # unfit() says for which platforms they cannot run here

    def unasked(self, target: schema.Target, device: torch.device | None) -> str:
        return f"runs where it is asked for: load with backend={target.name!r}"

    def unfit(
        self, target: schema.Target, platform: schema.Platform | None, device: torch.device | None, *, allow_untested_torch: bool
    ) -> str:
        from . import xla

        reason = self._unlike(target, platform)
        return xla.unfit(target, exact=False) if reason and self._has_programs(target) else reason

    def open(self, bundle: Bundle, target: schema.Target, device: torch.device | None, untrusted: str) -> Device:
        from .pjrt import PjrtDevice

        return PjrtDevice(bundle, target, compiles=bool(self._unlike(target, bundle.manifests[target.name].platform)))

    def _unlike(self, target: schema.Target, platform: schema.Platform | None) -> str:
        """Why the code itself cannot run here, or an empty string."""
        from . import xla

        return xla.unfit(target) or _unlike_machine(target, platform)

    def _has_programs(self, target: schema.Target) -> bool:
        from ..format.computations import computations

        found = [executable for _, _, executable in computations(target) if executable.results]
        return target.device == "cpu" and bool(found) and all(executable.stablehlo for executable in found)


BACKENDS: Final[dict[str, tuple[Backend, ...]]] = {
    "portable": (_Portable(),),
    "aoti": (_Aoti(), _Cuda()),
    "xla": (_Xla(), _Pjrt()),
}
"""The backends of each kind of target, as a target's document names it."""


def backend_of(target: schema.Target) -> Backend | None:
    """What runs a target, or None: this loader does not know its kind, or not its device."""
    return next((backend for backend in BACKENDS.get(target.kind, ()) if backend.runs(target)), None)


def unfit(
    target: schema.Target,
    program: schema.Program,
    platform: schema.Platform | None = None,
    device: torch.device | None = None,
    *,
    allow_untested_torch: bool = False,
) -> str:
    """Why ``target`` cannot run on this machine, or an empty string.

    ``platform`` comes from its manifest's descriptor. ``device`` is where it is to run; null: anywhere.
    """
    if not torch_satisfies(torch.__version__, program.requirements.torch):
        return f"needs torch {program.requirements.torch}, this is {torch.__version__}"
    if backend := backend_of(target):
        return backend.unfit(target, platform, device, allow_untested_torch=allow_untested_torch)
    if target.kind in BACKENDS:
        return f"this loader has no device {target.device!r}"
    return f"this loader does not know code of kind {target.kind!r}"


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
