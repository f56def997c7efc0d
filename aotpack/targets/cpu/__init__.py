"""The CPU target: AOTInductor code for a named instruction set, and the library that calls it."""

from .target import CpuTarget

__all__ = ["CpuTarget"]
