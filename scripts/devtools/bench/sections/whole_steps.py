"""Whole steps of training, with AdamW, of the networks of :mod:`.networks`: eager's with ``fused=True``, one that
``torch.compile`` compiled with its optimizer, and the bundle's own.
"""

from __future__ import annotations

from typing import Any

from devtools.bench.runner import WITH_OPTIMIZER, Bench
from devtools.bench.sections import networks

GOAL = 0.9
"""At the median of the networks, of the better of the peers."""
WHOLE = networks.Kind("whole_steps.json", GOAL, WITH_OPTIMIZER, words=("--optimizer",), threads=(1,))


def measure(bench: Bench) -> dict[str, Any]:
    return networks.measure_kind(bench, WHOLE)
