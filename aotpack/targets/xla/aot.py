"""Compiles StableHLO with jaxlib to XLA's own code for one platform: this machine's CPU, or a TPU
that need not be present.

Tried on: jax and jaxlib 0.10.2, libtpu 0.0.51.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from aotpack_loader.devices import cpuinfo
from aotpack_loader.errors import BuildError, Problem
from aotpack_loader.format import schema

from ...writer.bundle import TargetEntry
from ...writer.cache import CompileCache
from .compiler import CompilerError, compiler

_EXTENSIONS = (
    *(
        "abm",
        "adx",
        "aes",
        "bmi1",
        "bmi2",
        "cx16",
        "f16c",
        "fma",
        "fma4",
        "gfni",
        "lahf_lm",
        "movbe",
        "pclmulqdq",
        "pni",
        "popcnt",
    ),
    *("rdrand", "rdseed", "sha_ni", "sse4_1", "sse4_2", "sse4a", "ssse3", "tbm", "vaes", "vpclmulqdq", "xop"),
    *("avx", "avx2", "avx_vnni", "avx512_bf16", "avx512_bitalg", "avx512_fp16", "avx512_vbmi2", "avx512_vnni"),
    *("avx512_vp2intersect", "avx512_vpopcntdq", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512ifma", "avx512vbmi"),
    *("avx512vl", "amx_bf16", "amx_fp16", "amx_int8", "amx_tile"),
)
"""Extensions of a processor that XLA uses if it has them, in Linux' spelling.

XLA compiles for the machine it runs on.
"""


class Platform:
    """The platform that XLA compiles for.

    Args:
        variant: ``cpu``, or ``tpu-<generation>-<arrangement>`` (``tpu-v5e-2x2``) with any
            arrangement that libtpu knows.

    Raises:
        BuildError: there is no such platform; jaxlib or libtpu is not installed; or libtpu does not
            know the arrangement.
    """

    def __init__(self, variant: str) -> None:
        self.device, _, arrangement = variant.partition("-")
        generation, _, chips = arrangement.partition("-")
        self.topology = f"{generation}:{chips}" if chips else ""
        if (self.device == "tpu") != bool(chips) or (self.device != "tpu" and variant != "cpu"):
            raise BuildError(f"There is no target 'xla:{variant}'.", hint="Known: xla, xla:cpu, and TPUs as in xla:tpu-v5e-2x2.")
        self._needed = sorted(
            cpuinfo.features().intersection(_EXTENSIONS) if cpuinfo.architecture() == "amd64" else cpuinfo.features()
        )
        self._packages = installed("jax", "jaxlib", *(["libtpu"] if self.device == "tpu" else []))

    def compile(self, key: str, stablehlo: bytes, cache: CompileCache) -> bytes:
        """Compile the graph called ``key``.

        Returns what ``Executable.serialize`` returns, a protocol buffer of this jaxlib.

        It is not a pickle. XLA writes different bytes each time, so the result is cached.

        Raises:
            BuildError: XLA cannot compile the graph.
        """
        options = {**self.toolchain(), "kind": "pjrt", "topology": self.topology, "features": " ".join(self._needed)}
        found = cache.find(stablehlo, options)
        if found is None:
            try:
                found = {"code": compiler(self.device, self.topology).compile(stablehlo)}
            except CompilerError as error:
                raise BuildError(
                    f"XLA cannot compile this model for {self.device} {self.topology}.", [Problem(key, str(error))]
                ) from error
            cache.keep(stablehlo, options, found)
        return found["code"]

    def entry(
        self,
        name: str,
        computations: dict[str, schema.XlaExecutable],
        specializations: dict[str, list[schema.Specialization]],
        layers: list[schema.Descriptor],
        toolchain: Mapping[str, str],
    ) -> TargetEntry:
        """The target's entry: it requires exactly the releases that compiled it, and any release of
        torch.
        """
        here = self.device == "cpu"
        target = schema.Target(
            name=name,
            kind="xla",
            device=self.device,
            architecture=cpuinfo.architecture() if here else "",
            instruction_set="native" if here else "",
            cpu_features=self._needed if here else [],
            toolchain=dict(toolchain),
            xla=computations,
            packages={package: f"=={release}" for package, release in self._packages.items()},
            topology=self.topology,
            specializations=specializations,
        )
        return TargetEntry(target, schema.Platform(cpuinfo.architecture(), cpuinfo.system()) if here else None, layers)

    def toolchain(self) -> dict[str, str]:
        """The releases that decide what a program is compiled to.

        Raises:
            BuildError: libtpu does not know the arrangement.
        """
        try:
            return {**self._packages, "platform": compiler(self.device, self.topology).platform_version()}
        except CompilerError as error:
            raise BuildError(f"libtpu knows no arrangement of TPUs called {self.topology!r}: {error}") from error


def installed(*packages: str) -> dict[str, str]:
    """The releases of packages.

    Raises:
        BuildError: a package is not installed.
    """
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError as error:
            extra = "xla-tpu" if package == "libtpu" else "xla"
            raise BuildError(f"Compiling for XLA needs {package}.", hint=f"pip install 'aotpack[{extra}]'") from error
    return found
