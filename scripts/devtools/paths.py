"""Paths in the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "scripts" / "bench" / "results"
"""What sweeps and benchmarks measured, one JSON file each."""
