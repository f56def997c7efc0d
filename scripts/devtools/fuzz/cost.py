"""What the checks for untrusted bundles cost: nothing for trusted ones, and a ratio for the others.

``scripts/fuzz cost --against REVISION`` compares the loader of the checkout with that of a revision without these
checks. Both load and run the same bundles, trusted, by turns in processes of their own. The least processor time of
many turns counts.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..paths import ROOT

CASES = ("mlp", "batchnorm", "attention", "control_flow")
_TURNS = 5
_LOADS, _STEPS = 15, 60
Json = dict[str, Any]


def compare(revision: str) -> Json:
    """Seconds of a load with a step, and of a step, by case: before, now trusted, now untrusted. And their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(["git", "archive", revision, "loader"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(made)) as archive:
            archive.extractall(folder, filter="data")
        found: Json = {}
        old, new = Path(folder, "loader"), ROOT / "loader"
        for _ in range(_TURNS):
            for name, path, trust in (("before", old, "all"), ("trusted", new, "all"), ("untrusted", new, None)):
                _take_least(found.setdefault(name, {}), _measured(path, trust))
    ratios = {
        f"{name} / {other}": {key: round(value / found[other][key], 3) for key, value in found[name].items()}
        for name, other in (("trusted", "before"), ("untrusted", "trusted"))
    }
    return {"against": revision, "turns": _TURNS, "milliseconds": found, "ratios": ratios}


def _take_least(found: Json, measured: Json) -> None:
    for key, value in measured.items():
        found[key] = min(value, found.get(key, value))


def _measured(loader: Path, trust: str | None) -> Json:
    environment = {**os.environ, "PYTHONPATH": f"{loader}:{ROOT / 'scripts'}", "OMP_NUM_THREADS": "1"}
    program = f"from devtools.fuzz.cost import measure; measure({trust!r})"
    command = [sys.executable, "-W", "ignore", "-c", program]
    found: Json = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert found.pop("loader").startswith(str(loader))
    return found


def measure(trust: str | None) -> None:
    """Print milliseconds of processor time, the least of many."""
    import torch

    import aotpack_loader

    from .bundles import arguments

    torch.set_num_threads(1)
    found: Json = {"loader": aotpack_loader.__file__}
    for case in CASES:
        path = ROOT / "spec/vectors/v1/valid" / case / "bundle.aotpack"
        loads, steps = [], []
        for _ in range(_LOADS):
            args, kwargs = arguments(aotpack_loader.load(path, backend="portable", trust=trust).aotpack.program.methods["train"])
            start = time.process_time()
            model = aotpack_loader.load(path, backend="portable", trust=trust)
            _step(model, args, kwargs)
            loads.append(time.process_time() - start)
        for _ in range(_STEPS):
            start = time.process_time()
            _step(model, args, kwargs)
            steps.append(time.process_time() - start)
        found[f"{case}: load and step"] = round(1e3 * min(loads), 4)
        found[f"{case}: step"] = round(1e3 * min(steps), 4)
    print(json.dumps(found))


def _step(model: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    import torch

    results = model(*args, **kwargs)
    heads = [t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])
