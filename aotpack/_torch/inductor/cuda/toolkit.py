"""What a build for GPUs needs of NVIDIA's tools: all is in the package ``triton``."""

from __future__ import annotations

import functools
import re
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from aotpack_loader.errors import BuildError

from .chips import number

_HINT = "Install it: pip install triton==3.7.1 (the release that torch 2.13 names), or use scripts/setup-cuda."


def nvidia_folder() -> Path:
    """The folder of NVIDIA's tools and headers in the package ``triton``.

    Raises:
        BuildError: the package is not there, or lacks them.
    """
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        raise BuildError("The cuda target compiles kernels with Triton, and the package triton is not installed.", hint=_HINT)
    folder = Path(spec.origin).parent / "backends" / "nvidia"
    for name in ("bin/ptxas", "include/cuda.h", "include/cuda_runtime_api.h"):
        if not (folder / name).exists():
            raise BuildError(f"The cuda target needs {name} of the package triton, and {folder} lacks it.", hint=_HINT)
    return folder


def include_folder() -> Path:
    """The folder of the headers of CUDA."""
    return nvidia_folder() / "include"


@functools.cache
def assembler_release(architecture: str) -> str:
    """The release of CUDA whose assembler Triton uses for an architecture: ``12.8``."""
    name = "ptxas-blackwell" if number(architecture) >= 100 else "ptxas"
    shown = subprocess.run([nvidia_folder() / "bin" / name, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"release (\d+\.\d+)", shown)
    if found is None:
        raise BuildError(f"{name} does not tell its release: {shown.strip()[:100]!r}.")
    return found[1]


def triton_version() -> str:
    """The installed release of Triton."""
    return version("triton")


def ptx_version(release: str) -> str:
    """The version of PTX that a release of CUDA brought, which Triton writes for its assembler."""
    from triton.backends.nvidia.compiler import ptx_get_version

    found = ptx_get_version(release)
    return f"{found // 10}.{found % 10}"
