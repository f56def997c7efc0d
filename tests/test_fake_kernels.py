"""Strides that a trace tells are those that kernels give: some operators of scripts/fake-kernels, which compares all."""

from __future__ import annotations

import itertools

import torch
from torch.testing._internal.common_methods_invocations import op_db

from devtools.fake_kernels import Kernels, Operators, samples

TOLD_OTHERWISE = {
    "nn.functional.pad": ("reflect", "replicate"),
    "nn.functional.channel_shuffle": ("",),
    "nn.functional.glu": ("",),
    "nn.functional.huber_loss": ("",),
    "nn.functional.interpolate": ("nearest",),
    "nn.functional.logsigmoid": ("",),
    "cat": ("",),
    "heaviside": ("",),
    "ldexp": ("",),
    "xlogy": ("",),
}
"""Operators of the database, by their variants, of which torch's own fake kernels or decompositions tell other strides."""

FIRST = 200
"""How many samples of each: each tensor of the database in all layouts is one."""


def test_a_trace_tells_the_strides_of_kernels() -> None:
    kernels, operators = Kernels(), Operators()
    found = [op for op in op_db if op.variant_test_name in TOLD_OTHERWISE.get(op.name, ())]
    assert {op.name for op in found} == set(TOLD_OTHERWISE)
    torch.manual_seed(0)
    for operator in found:
        for arguments, gradients in itertools.islice(samples(operator), FIRST):
            operators.compare(operator, arguments, gradients, kernels)
    assert kernels.differ["portable"] == kernels.differ["cpu"] == operators.differ["results"] == {}
    assert len(kernels.differ["torch"]) > 5  # otherwise torch has mended its own
    assert len(kernels.known) > 300
