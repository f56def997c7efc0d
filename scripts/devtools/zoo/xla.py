"""Architectures of the zoo on an XLA device: ten steps of SGD with momentum, compared with eager's on the CPU.

Each is built as a portable bundle, and ``aotpack compile --target xla`` adds the target. A new process in
torch_xla's environment, which lacks the models' packages, loads and trains it. Dropout is off, because XLA draws other numbers
than eager. Losses, and final parameters and buffers, are compared.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import aotpack
from devtools.machine import provenance
from devtools.pages import replace
from devtools.paths import RESULTS, ROOT
from devtools.zoo import xla_steps
from devtools.zoo.roll import ARCHITECTURES
from devtools.zoo.workers import awake

THERE = ROOT / ".venv-xla" / "bin" / "python"
RECORD = RESULTS / "zoo_xla.json"
PAGE = ROOT / "docs" / "xla.md"
CHOSEN = ("gpt2", "bert", "vit", "resnet", "t5")
TOLERANCE = 1e-3
"""Of losses and of what ten steps lead to, relative to the largest value: the errors of one step are carried on by the next."""
TIMEOUT = 1200

Line = dict[str, Any]


def main() -> None:
    options = parse()
    unknown = set(options.only) - set(ARCHITECTURES)
    if unknown:
        sys.exit(f"zoo-xla: no architecture {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    lines = json.loads(RECORD.read_text())["entries"] if RECORD.exists() else {}
    for name in options.only:
        lines[name] = run(name)
        known = {key: lines[key] for key in ARCHITECTURES if key in lines}
        RECORD.write_text(json.dumps({**provenance(threads=1), "entries": known}, indent=2) + "\n")
        print(f"{name}: {lines[name]}", flush=True)
    replace(PAGE, "zoo-xla", table(lines))
    sys.exit(any(lines[name]["status"] != "passed" for name in options.only))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/zoo-xla", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=CHOSEN, metavar="NAME", help=f"default: {' '.join(CHOSEN)}; any of the zoo's"
    )
    return parser.parse_args()


def run(name: str) -> Line:
    """Run one architecture through all processes."""
    with tempfile.TemporaryDirectory(prefix="aotpack-zoo-xla-") as directory:
        folder = Path(directory)
        try:
            expected = build(name, folder)
            start = time.perf_counter()
            given, made = folder / "portable.aotpack", folder / "xla.aotpack"
            process([sys.executable, "-m", "aotpack", "compile", given, "--target", "xla", "-o", made])
            seconds = time.perf_counter() - start
            process([THERE, "-I", xla_steps.__file__, folder])
        except (aotpack.AotpackError, subprocess.SubprocessError) as error:
            return {"status": "failed", "reason": str(getattr(error, "stderr", "") or error).strip()[-600:]}
        measured = json.loads((folder / "xla.json").read_text())
        found = load_file(folder / "xla.safetensors")
        size = (folder / "xla.aotpack").stat().st_size
    errors = compared(expected, found)
    line = {"status": "passed", "compile_seconds": round(seconds, 1), "bundle_bytes": size, **measured, **errors}
    line["losses"] = [[round(value, 6) for value in side["losses"].tolist()] for side in (expected, found)]
    if measured["imported"] or not max(errors.values()) <= TOLERANCE:
        line["status"] = "failed"
    return line


def build(name: str, folder: Path) -> dict[str, Tensor]:
    """Write the portable bundle and the inputs. Returns the results of eager's training."""
    item = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = without_dropout(awake(item.model()))
    inputs = item.inputs(item.batch)
    torch.save(inputs, folder / "inputs.pt")
    out = folder / "portable.aotpack"
    aotpack.build(model, (), inputs, out=out, targets=("portable",), methods=("train",), branches=item.branches, cache=False)
    return xla_steps.train(copy.deepcopy(model), inputs)


def without_dropout(model: nn.Module) -> nn.Module:
    """Set every dropout rate to 0, in dropout modules and in attention modules that store it as a number."""
    for module in model.modules():
        rates = [key for key, value in vars(module).items() if "drop" in key and isinstance(value, float)]
        for key in [*rates, *(["p"] if isinstance(module, nn.modules.dropout._DropoutNd) else [])]:
            setattr(module, key, 0.0)
    return model


def process(command: list[Any]) -> None:
    subprocess.run([str(word) for word in command], check=True, timeout=TIMEOUT, capture_output=True, text=True, cwd="/")


def compared(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest error of losses and of state, relative to the largest value of each tensor, but at least to 0.01."""
    errors = {"losses": 0.0, "state": 0.0}
    for name, value in expected.items():
        scale = max(value.abs().max().item(), 1e-2) if value.numel() else 1.0
        error = (found[name].double() - value.double()).abs().max().item() / scale if value.numel() else 0.0
        kind = name.partition("/")[0]
        errors[kind] = max(errors[kind], error if math.isfinite(error) else math.inf)
    return {f"{kind}_error": error for kind, error in errors.items()}


def table(lines: Mapping[str, Line]) -> str:
    """A table with a row for each model."""
    rows = [
        "| model | loss, step 1 → 10 | error of losses | of parameters, buffers | load |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, line in lines.items():
        title = ARCHITECTURES[name].title
        if line["status"] != "passed":
            rows.append(f"| {title} | failed: {' '.join(line.get('reason', 'differs').split())[:160]} | | | |")
            continue
        first, last = line["losses"][1][0], line["losses"][1][-1]
        errors = f"{line['losses_error']:.0e} | {line['state_error']:.0e}"
        rows.append(f"| {title} | {first:.3f} → {last:.3f} | {errors} | {line['load_seconds']:.1f} s |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
