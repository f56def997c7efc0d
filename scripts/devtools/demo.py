"""The demo: build the digits model, train the bundle where its source is out of reach, compare and measure.

Everything runs in new processes. This process starts them and reads their results. It exits with 1
if the bundle's first step differs from eager's, or if the test accuracy stays below 95 %.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from aotpack.tools.cli.console import size_text, time_text
from devtools.paths import ROOT

MODEL = ROOT / "examples" / "digits" / "model.py"
TRAIN = ROOT / "examples" / "digits" / "train.py"
FIRST_STEP = ROOT / "scripts" / "devtools" / "bench" / "first_step.py"
CONTENDER = ROOT / "aotpack" / "tools" / "measure" / "contender.py"
TARGETS = ("cpu", "portable")
ACCURACY = 0.95
RTOL, ATOL = 1e-4, 1e-5

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


class DemoError(Exception):
    """A step of the demo failed. The message is for the user."""


@dataclass(frozen=True)
class Directories:
    """``work`` is the folder of this process.

    ``away`` represents another machine, with the bundle and scripts but no model.
    """

    work: Path
    away: Path

    @property
    def bundle(self) -> Path:
        return self.away / "digits.aotpack"

    @property
    def inputs(self) -> Path:
        return self.away / "inputs.pt"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each short contender; the median counts")
    parser.add_argument("--threads", type=int, default=1, help="0: torch's choice; on a busy machine, one is steadier")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures to this file too")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="aotpack-demo-") as directory:
            figures = demo(Path(directory), options.repeat, options.threads)
    except DemoError as error:
        console.print(f"demo failed: {error}", style="bold red", markup=False)
        sys.exit(1)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def demo(directory: Path, repeat: int, threads: int) -> dict[str, Any]:
    directories = Directories(directory / "work", directory / "away")
    directories.work.mkdir()
    directories.away.mkdir()
    for script in (TRAIN, CONTENDER, FIRST_STEP):
        shutil.copy(script, directories.away)

    build = build_bundle(directories)
    first_steps(directories)
    accuracy = train(directories)
    runs = contenders(directories, repeat, threads)
    report(build, accuracy, runs)
    return {"build": build, "accuracy": accuracy, "contenders": runs}


# ---------------------------------------------------------------- the steps


def build_bundle(directories: Directories) -> dict[str, Any]:
    title("1. Build: examples/digits/model.py to one file, compiled for this processor, and portable")
    targets = [part for target in TARGETS for part in ("--target", target)]
    command = [
        "-m",
        "aotpack.tools.cli",
        "build",
        MODEL.relative_to(ROOT),
        "-o",
        directories.bundle,
        *targets,
        "--no-cache",
        "--json",
    ]
    start = time.perf_counter()
    output = python(command, cwd=ROOT, cache=directories.work / "build-cache", stderr=None)
    report: dict[str, Any] = json.loads(output)
    report["seconds"] = time.perf_counter() - start
    return report


def first_steps(directories: Directories) -> None:
    """Compare loss, gradients and state of the first step.

    Only the eager reference has access to the model's source.
    """
    title("2. Compare the first training step with eager: the loss, every gradient, every buffer")
    eager = directories.work / "eager.safetensors"
    python([directories.away / "first_step.py", "--model", MODEL, "--save-inputs", directories.inputs, "--out", eager], cwd=ROOT)
    expected = load_file(eager)
    for target in TARGETS:
        out = directories.work / f"{target}.safetensors"
        without_source(
            directories,
            "first_step.py",
            "--bundle",
            directories.bundle,
            "--backend",
            target,
            "--inputs",
            directories.inputs,
            "--out",
            out,
        )
        worst = compare(target, expected, load_file(out))
        gradients = sum(name.startswith("grad.") for name in expected)
        console.print(f"   {target:9} loss, {gradients} gradients and the state agree; largest difference {worst:.1e}")


def compare(target: str, expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]) -> float:
    if expected.keys() != actual.keys():
        raise DemoError(f"{target} gives other tensors than eager: {sorted(expected.keys() ^ actual.keys())}")
    wrong, worst = [], 0.0
    for name, reference in expected.items():
        difference = float(np.max(np.abs(actual[name].astype(np.float64) - reference), initial=0.0))
        worst = max(worst, difference)
        if not np.allclose(actual[name], reference, rtol=RTOL, atol=ATOL):
            wrong.append(f"{name} by {difference:.2e}")
    if wrong:
        raise DemoError(f"{target} differs from eager: {', '.join(wrong)}")
    return worst


def train(directories: Directories) -> float:
    title("3. Train the bundle in a fresh process: an empty directory, no model.py, no compiler")
    output = without_source(directories, "train.py", directories.bundle)
    for line in output.splitlines():
        console.print(f"   {line}", markup=False)
    found = re.search(r"test accuracy: ([0-9.]+)", output)
    accuracy = float(found[1]) if found else 0.0
    if accuracy < ACCURACY:
        raise DemoError(f"the test accuracy is {accuracy:.4f}, below {ACCURACY}")
    return accuracy


def contenders(directories: Directories, repeat: int, threads: int) -> dict[str, dict[str, Any]]:
    count = {0: "torch's choice of threads", 1: "one thread"}.get(threads, f"{threads} threads")
    title(f"4. From `import torch` to the end of the first step, each in a fresh process, {count}")
    source = ["--model", MODEL, "--threads", threads]
    bundle = ["--kind", "bundle", "--bundle", directories.bundle, "--threads", threads]
    cache = directories.work / "compile-cache"
    runs = {}
    with console.status("eager"):
        runs["eager"] = contender(directories, repeat, ["--kind", "eager", *source])
    with console.status("torch.compile, cold cache"):
        runs["torch.compile, cold"] = contender(directories, 1, ["--kind", "compile", *source], cache=cache)
    with console.status("torch.compile, warm cache"):
        runs["torch.compile, warm"] = contender(directories, repeat, ["--kind", "compile", *source], cache=cache)
    for target in TARGETS:
        with console.status(f"bundle, {target}"):
            runs[f"bundle, {target}"] = contender(directories, repeat, [*bundle, "--backend", target])
    return runs


def contender(directories: Directories, repeat: int, arguments: Sequence[object], cache: Path | None = None) -> dict[str, Any]:
    """The run with the median start. All figures come from the same run."""
    command = [*arguments, "--inputs", directories.inputs, "--json"]
    runs = [json.loads(isolated(directories, "contender.py", *command, cache=cache)) for _ in range(repeat)]
    middle = statistics.median_low(run["t_from_import_to_first_step"] for run in runs)
    found: dict[str, Any] = next(run for run in runs if run["t_from_import_to_first_step"] == middle)
    return found


def report(build: Mapping[str, Any], accuracy: float, runs: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table("", "to the first step", "a step", "modules imported", "peak memory", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, run in runs.items():
        table.add_row(
            name,
            time_text(run["t_from_import_to_first_step"]),
            time_text(run["t_step_median"]),
            str(run["modules_added"]),
            size_text(run["peak_rss"]),
        )
    console.print(table)
    warm = runs["torch.compile, warm"]["t_from_import_to_first_step"]
    bundle = runs["bundle, cpu"]["t_from_import_to_first_step"]
    console.print()
    console.print(f"build time    {time_text(build['seconds'])}")
    console.print(f"bundle size   {size_text(build['size'])}")
    console.print(f"accuracy      {accuracy:.2%} on test data")
    console.print(f"cold start    {warm / bundle:,.0f} times faster than torch.compile with a warm cache")


# ---------------------------------------------------------------- processes


GUARD = """
import runpy, sys
def guard(event, args, forbidden=sys.argv.pop(1)):
    if event == "open" and str(args[0]).startswith(forbidden):
        raise PermissionError(f"{args[0]} is out of reach")
sys.addaudithook(guard)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script in which opening a file below a directory fails."""


def without_source(directories: Directories, script: str, *arguments: object) -> str:
    """Run a copied script isolated. Opening any file below ``examples/`` is an error."""
    with empty_directory(directories) as cwd:
        return python(["-I", "-c", GUARD, MODEL.parent.parent, directories.away / script, *arguments], cwd=cwd)


def isolated(directories: Directories, script: str, *arguments: object, cache: Path | None = None) -> str:
    """Run a copied script with ``python -I`` in an empty directory, without our directories on the import path."""
    with empty_directory(directories) as cwd:
        return python(["-I", directories.away / script, *arguments], cwd=cwd, cache=cache)


@contextmanager
def empty_directory(directories: Directories) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir=directories.work))
    yield directory
    shutil.rmtree(directory)


def python(command: Sequence[object], *, cwd: Path, cache: Path | None = None, stderr: int | None = subprocess.PIPE) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TORCHINDUCTOR"))}
    if cache is not None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    words = [sys.executable, *map(str, command)]
    process = subprocess.run(
        words, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    if process.returncode:
        raise DemoError(f"`{' '.join(words)}` exited with {process.returncode}\n{process.stdout}{process.stderr or ''}")
    return process.stdout


def title(text: str) -> None:
    console.print(f"\n{text}", style="bold", markup=False)


if __name__ == "__main__":
    main()
