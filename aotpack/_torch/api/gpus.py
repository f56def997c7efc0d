"""Keeps a build from using a GPU of the machine."""

from __future__ import annotations

import torch

from .patching import Replacing, hooked


def without_gpus() -> Replacing:
    """While active, ``torch.cuda.is_available()`` is False.

    A build computes on the CPU alone. Where a GPU is available, tracing saves the state of its
    random numbers. That starts CUDA: it takes seconds and memory of the GPU, and the process cannot
    be copied any more. A model that asks is traced as on a machine without a GPU.
    """
    return hooked("dynamo-without-gpus", torch.cuda, "is_available", lambda: False)
