"""The architectures of NVIDIA's GPUs that kernels are compiled for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, NamedTuple


class Chip(NamedTuple):
    """What one architecture offers a block: bytes of ``shared`` memory. ``cuda``: the first release of CUDA that knows it."""

    shared: int
    cuda: str


CHIPS: Final[dict[str, Chip]] = {
    "sm80": Chip(166912, "11.0"),
    "sm86": Chip(101376, "11.1"),
    "sm89": Chip(101376, "11.8"),
    "sm90": Chip(232448, "11.8"),
    "sm100": Chip(232448, "12.8"),
    "sm120": Chip(101376, "12.8"),
}


def number(architecture: str) -> int:
    """Convert ``"sm90"`` to 90."""
    return int(architecture.removeprefix("sm"))


def capability(architecture: str) -> str:
    """Convert ``"sm90"`` to ``"9.0"``, as CUDA writes it."""
    return f"{number(architecture) // 10}.{number(architecture) % 10}"


def has_portable_ptx(architecture: str) -> bool:
    """Whether Triton's PTX for an architecture is valid for later ones. From sm90 on it uses what later ones lack."""
    return number(architecture) < 90


COMMON_CC: Final = 80


def common_properties() -> Any:
    """The properties of the device that graphs are lowered for: what all architectures have, and an A100's number of processors.

    Lowering asks for them once, so code does not depend on the architectures that a bundle is built for.
    """
    return SimpleNamespace(
        name="any",
        major=COMMON_CC // 10,
        minor=COMMON_CC % 10,
        multi_processor_count=108,
        total_memory=40 << 30,
        warp_size=32,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=1536,
        max_threads_per_block=1024,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=min(chip.shared for chip in CHIPS.values()),
        shared_memory_per_multiprocessor=102400,
        L2_cache_size=40 << 20,
        gcnArchName="",
        is_integrated=0,
        is_multi_gpu_board=0,
        clock_rate=1_500_000,
        memory_clock_rate=1_500_000,
        memory_bus_width=5120,
    )
