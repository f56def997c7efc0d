"""The cases of the conformance table that are compiled and run across releases of torch."""

from __future__ import annotations

NAMES = (
    "input mutation: data of a non-leaf that feeds the backward",
    "buffer mutated: view of a buffer",
    "BatchNorm in a network",
    "outputs: multi-output views of an intermediate, unbind and base",
    "RNG dropout: two of them, eager's numbers under one seed",
    "RNG: attention with dropout",
    "shapes: dynamic batch and sequence",
    "shapes: unbacked, dynamic batch beside it",
    "shapes: unbacked, a check that fails (eager raises)",
    "control flow: cond, dynamic batch",
    "control flow: scan, closures over parameters",
    "custom operators: writes to several, with a result, cpu",
    "subclasses: parameter, trained",
    "autograd: one key for all queries, cpu",
    "autograd: average pooling over the edge, cpu",
    "layouts: images of any size, cpu",
    "as_strided: images, cpu",
    "compiled: extremes of int8, cpu",
    "compiled: casts round, gradients",
    "compiled: complex numbers",
    "compiled: read and written, cpu",
)
"""Buffers, mutations, views, random numbers, sizes that vary, branches, checks that raise,
convolutions, attention, and eight dtypes."""
