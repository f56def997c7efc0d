"""The CUDA target: AOTInductor's host code, and kernels of Triton for named architectures."""

from .target import CudaTarget

__all__ = ["CudaTarget"]
