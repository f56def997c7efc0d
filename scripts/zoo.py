"""The zoo: build known architectures, load each bundle where its source is out of reach, compare with eager.

Each entry is an architecture of zoo_models.py on one target, with static sizes or a dynamic batch. A first process
makes the model, records eager (two SGD steps and an inference, each on other data) and builds the bundle; a second
one, isolated, in an empty directory, in which the model's packages cannot be imported, loads the bundle and does the
same. Losses, outputs, every gradient, every buffer and the parameters at the end are compared. With a dynamic batch
no step has the size that the bundle was built with.

An error is the largest difference within a tensor, relative to the tensor's largest value; for gradients and
parameters, to a thousandth of the largest of them all if that is more, because some vanish (the bias of an attention's
keys has no effect). Failures stay in the table with their reason.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "scripts" / "bench" / "results" / "zoo.json"
README = ROOT / "README.md"
MARKS = ("<!-- zoo:begin -->", "<!-- zoo:end -->")

TOLERANCE = {"portable": 1e-4, "cpu": 1e-3}
FLOOR = 1e-3
LEARNING_RATE = 0.05
STEPS = 2
TIMEOUT = 1200
THREADS = 1
"""On a busy machine OpenMP's barriers cost a hundred times such a small step."""

SOURCES = ("transformers", "timm", "diffusers", "zoo_models")
"""What the second process cannot import."""
COMPILERS = ("torch._dynamo", "torch._inductor", "sympy", "triton", "aotpack")
"""What it must not have imported."""

progress_console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 140)
console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


class ZooError(Exception):
    """An entry failed; the message is its reason."""


@dataclass(frozen=True)
class Entry:
    """A line of the results."""

    name: str
    target: str
    dynamic: bool

    def __str__(self) -> str:
        return f"{self.name} on {self.target}" + (", dynamic batch" if self.dynamic else "")


def main() -> None:
    if sys.argv[1:2] == ["--process"]:
        worker(sys.argv[2], Path(sys.argv[3]))
        return
    options = parse()
    entries = planned(options)
    old = [] if not (options.only or options.target) or not RESULTS.exists() else json.loads(RESULTS.read_text())["entries"]
    results = run_all(entries, old, options)
    if options.json:
        print(json.dumps(results, indent=2))
    elif options.markdown:
        print(markdown(results))
    else:
        console.print(screen_table(results, entries))
    update_readme(results)
    chosen = [line for line in results["entries"] if key_of(line) in entries]
    if options.strict and any(line["status"] != "passed" for line in chosen):
        sys.exit(1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these architectures; other results are kept")
    parser.add_argument("--target", choices=list(TOLERANCE), help="only this target; other results are kept")
    parser.add_argument("--jobs", type=int, default=1, help="entries at a time (default 1)")
    parser.add_argument("--list", action="store_true", help="list the architectures")
    parser.add_argument("--json", action="store_true", help="print all results as JSON on stdout")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown on stdout")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if an entry fails")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what a failing process wrote")
    return parser.parse_args()


def planned(options: argparse.Namespace) -> list[Entry]:
    """The entries to run, in the registry's order. A dynamic batch is tried on the portable target."""
    from zoo_models import ARCHITECTURES

    if options.list:
        for item in ARCHITECTURES.values():
            console.print(f"{item.name:12} {item.title}", markup=False)
        sys.exit()
    unknown = set(options.only or ()) - set(ARCHITECTURES)
    if unknown:
        sys.exit(f"zoo: no architecture {', '.join(sorted(unknown))}; `scripts/zoo --list` lists them")
    chosen = [item for item in ARCHITECTURES.values() if not options.only or item.name in options.only]
    every = [Entry(item.name, target, dynamic) for item in chosen for target, dynamic in variants(item.dynamic)]
    return [entry for entry in every if options.target in (None, entry.target)]


def variants(dynamic: bool) -> list[tuple[str, bool]]:
    return [("portable", False), *([("portable", True)] if dynamic else []), ("cpu", False)]


def run_all(entries: Sequence[Entry], old: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Run the entries and write the results file after each, so that an interrupted run leaves what it did."""
    lines = {key_of(line): line for line in old}
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    results = summary(lines)
    with Progress(*columns, console=progress_console, transient=True) as progress:
        task = progress.add_task("zoo", total=len(entries))
        with ThreadPoolExecutor(options.jobs) as pool:
            futures = {pool.submit(run_entry, entry): entry for entry in entries}
            try:
                for future in as_completed(futures):
                    entry = futures[future]
                    line, log = future.result()
                    lines[entry] = line
                    results = summary(lines)
                    RESULTS.parent.mkdir(parents=True, exist_ok=True)
                    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
                    progress.console.print(one_line(entry, line), markup=False)
                    if options.verbose and line["status"] != "passed":
                        progress.console.print(log, markup=False)
                    progress.advance(task)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return results


def one_line(entry: Entry, line: Mapping[str, Any]) -> str:
    if line["status"] == "passed":
        seconds = f"built in {line['build_seconds']['total']:.1f} s, {line['front_end']} front end"
        return f"{entry}: passed, gradients to {line['errors']['gradients']:.1e}, {seconds}"
    return f"{entry}: {line['status']}: {line['reason']}"


# ---------------------------------------------------------------- one entry, two processes


def run_entry(entry: Entry) -> tuple[dict[str, Any], str]:
    """Build and check one entry; gives its line of the results and what the processes wrote."""
    line: dict[str, Any] = {**asdict(entry), "status": "failed", "reason": None, "date": now()}
    with tempfile.TemporaryDirectory(prefix="aotpack-zoo-") as directory:
        folder = Path(directory)
        (folder / "entry.json").write_text(json.dumps(asdict(entry)))
        try:
            line |= process("build", folder)
            line |= process("check", folder)
            errors = compare(load_file(folder / "eager.safetensors"), load_file(folder / "bundle.safetensors"))
            line["errors"] = {kind: error if math.isfinite(error) else None for kind, error in errors.items()}
            judge(errors, TOLERANCE[entry.target])
            line["status"] = "passed"
        except ZooError as error:
            line["reason"] = str(error)
        return line, "".join(file.read_text() for file in sorted(folder.glob("*.log")))


def process(name: str, folder: Path) -> dict[str, Any]:
    """Run a worker in a fresh process; the checking one isolated, in an empty directory."""
    cwd = folder / f"{name}-cwd"
    cwd.mkdir()
    isolated = ["-I"] if name == "check" else []
    command = [sys.executable, *isolated, str(Path(__file__).resolve()), "--process", name, str(folder)]
    environment = {word: value for word, value in os.environ.items() if not word.startswith("PYTHON")}
    with (folder / f"{name}.log").open("w") as log:
        try:
            code = subprocess.run(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=TIMEOUT
            ).returncode
        except subprocess.TimeoutExpired:
            raise ZooError(f"{name}: not done after {TIMEOUT} s") from None
    answer = folder / f"{name}.json"
    if code or not answer.exists():
        last = (folder / f"{name}.log").read_text().strip().splitlines()[-1:]
        raise ZooError(f"{name}: the process ended with {code}: {' '.join(last)}")
    found: dict[str, Any] = json.loads(answer.read_text())
    if "error" in found:
        raise ZooError(f"{name}: {found['error']}")
    return found


def worker(name: str, folder: Path) -> None:
    """The body of a process: its answer, or its error, goes to a file."""
    entry = Entry(**json.loads((folder / "entry.json").read_text()))
    torch.set_num_threads(THREADS)
    try:
        answer = {"build": build_worker, "check": check_worker}[name](entry, folder)
    except Exception as error:
        traceback.print_exc()
        answer = {"error": explain(error)}
    (folder / f"{name}.json").write_text(json.dumps(answer))


def explain(error: Exception) -> str:
    """An exception's type and first lines."""
    lines = [text.strip() for text in str(error).strip().splitlines() if text.strip()]
    text = " ".join(lines[:4])
    return f"{type(error).__name__}: {text[:600]}"


def build_worker(entry: Entry, folder: Path) -> dict[str, Any]:
    from zoo_models import ARCHITECTURES

    import aotpack

    item = ARCHITECTURES[entry.name]
    size = 2 * item.batch if entry.dynamic else item.batch
    model, args, kwargs, shapes = seeded(item.make, size, 0)
    sizes = [size - 1, size + 1, size + 2] if entry.dynamic else [size] * (STEPS + 1)
    batches = [seeded(item.make, size, seed)[1:3] for seed, size in enumerate(sizes, 1)]
    torch.save(batches, folder / "inputs.pt")
    reference, _ = record(copy.deepcopy(model), batches)
    save_file(reference, folder / "eager.safetensors")

    before = copy.deepcopy(model.state_dict())
    report = aotpack.build(
        model,
        args,
        kwargs,
        out=folder / "zoo.aotpack",
        targets=(entry.target,),
        dynamic_shapes=shapes if entry.dynamic else None,
        cache=False,
    )
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    if changed:
        raise ZooError(f"building changed the model: {', '.join(changed)}")
    stages = {stage.name: round(stage.seconds, 3) for stage in report.stages}
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "build_seconds": {**stages, "total": round(sum(stages.values()), 3)},
        "bundle_bytes": report.size,
        "saved_bytes": report.saved_bytes.get("train", 0),
        "warnings": list(report.warnings),
    }


def seeded(make: Any, batch: int, seed: int) -> Any:
    torch.manual_seed(seed)
    return make(batch)


def check_worker(entry: Entry, folder: Path) -> dict[str, Any]:
    sys.meta_path.insert(0, OutOfReach())
    import aotpack_loader

    batches = torch.load(folder / "inputs.pt", weights_only=True)
    start = time.perf_counter()
    model = aotpack_loader.load(folder / "zoo.aotpack", backend=entry.target)
    load_seconds = time.perf_counter() - start
    found, step_seconds = record(model, batches)
    save_file(found, folder / "bundle.safetensors")
    imported = [name for name in (*SOURCES, *COMPILERS) if name in sys.modules]
    if imported:
        raise ZooError(f"loading and training imported {', '.join(imported)}")
    return {
        "front_end": model.aotpack.program.methods["train"].captured_with,
        "load_seconds": round(load_seconds, 5),
        "first_step_seconds": round(step_seconds[0], 5),
        "second_step_seconds": round(step_seconds[1], 5),
    }


class OutOfReach:
    """A finder that comes first and refuses the model's packages."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] in SOURCES:
            raise ImportError(f"{name} is out of reach here")


# ---------------------------------------------------------------- what a model does


def record(model: nn.Module, batches: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> tuple[dict[str, Tensor], list[float]]:
    """Train a step on each batch but the last, infer on the last: all results by name, and the steps' seconds.

    SGD is done by hand: a ``torch.optim`` optimizer imports the compiler.
    """
    *training, last = batches
    found: dict[str, Tensor] = {}
    seconds = []
    model.train()
    for number, (args, kwargs) in enumerate(training):
        start = time.perf_counter()
        output = model(*args, **kwargs)
        output["loss"].backward()
        seconds.append(time.perf_counter() - start)
        found |= {f"loss/{number}": output["loss"], **named(f"outputs/{number}", output)}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"gradients/{number}/{name}"] = parameter.grad
                parameter.data.add_(parameter.grad, alpha=-LEARNING_RATE)
                parameter.grad = None
        found |= {f"buffers/{number}/{name}": value.clone() for name, value in model.named_buffers()}
    found |= {f"parameters/{name}": value for name, value in model.named_parameters()}
    model.eval()
    with torch.no_grad():
        found |= named("inference", model(*last[0], **last[1]))
    return {name: value.detach().clone().contiguous() for name, value in found.items()}, seconds


def named(path: str, value: Any) -> dict[str, Tensor]:
    """The tensors of a nested result by path, whatever its containers are."""
    if isinstance(value, Tensor):
        return {path: value}
    return {name: tensor for key, item in items_of(value) for name, tensor in named(f"{path}/{key}", item).items()}


def items_of(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (tuple, list)):
        yield from enumerate(value)
    elif is_dataclass(value):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))


# ---------------------------------------------------------------- comparison


def compare(expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> dict[str, float]:
    """The largest relative error of each kind of result."""
    missing, extra = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    if missing or extra:
        raise ZooError(f"other results than eager: {few(missing)} missing, {few(extra)} unexpected")
    kinds = ("loss", "outputs", "gradients", "buffers", "parameters", "inference")
    errors = dict.fromkeys(kinds, 0.0)
    largest = dict.fromkeys(map(group_of, expected), 0.0)
    for name, value in expected.items():
        largest[group_of(name)] = max(largest[group_of(name)], magnitude(value))
    for name, value in expected.items():
        kind = name.partition("/")[0]
        floor = FLOOR * largest[group_of(name)] if kind in ("gradients", "parameters") else 0.0
        errors[kind] = max(errors[kind], relative_error(actual[name], value, floor))
    return errors


def group_of(name: str) -> str:
    """Kind and step: ``gradients/1`` of ``gradients/1/lm_head.weight``."""
    return name.rpartition("/")[0]


def magnitude(value: Tensor) -> float:
    return float(value.double().abs().max()) if value.numel() else 0.0


def relative_error(actual: Tensor, expected: Tensor, floor: float) -> float:
    """Largest difference over largest value; infinite where type, shape or an integer differs."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return math.inf
    if not expected.is_floating_point():
        return 0.0 if torch.equal(actual, expected) else math.inf
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    if bool(same.all()):
        return 0.0
    error = magnitude(torch.where(same, 0.0, actual.double() - expected.double()))
    scale = max(magnitude(expected), floor)
    return error / scale if scale and math.isfinite(error / scale) else math.inf


def judge(errors: Mapping[str, float], limit: float) -> None:
    """Raise if an error is over the target's tolerance."""
    over = [f"{kind} by {error:.1e}" for kind, error in errors.items() if not error <= limit]
    if over:
        raise ZooError(f"differs from eager: {', '.join(over)} (allowed {limit:.0e})")


def few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") if names else "none"


# ---------------------------------------------------------------- results


def summary(lines: Mapping[Entry, dict[str, Any]]) -> dict[str, Any]:
    """All results, in the registry's order."""
    from zoo_models import ARCHITECTURES

    order = [Entry(i.name, target, dynamic) for i in ARCHITECTURES.values() for target, dynamic in variants(i.dynamic)]
    packages = ("torch", "transformers", "aotpack")
    return {
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "threads": THREADS},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "date": now(),
        "tolerances": TOLERANCE,
        "entries": [lines[entry] for entry in order if entry in lines],
    }


def key_of(line: Mapping[str, Any]) -> Entry:
    return Entry(line["name"], line["target"], line["dynamic"])


def cpu_model() -> str:
    try:
        words = [text.partition(":")[2].strip() for text in Path("/proc/cpuinfo").read_text().splitlines()
                 if text.startswith("model name")]  # fmt: skip
    except OSError:
        words = []
    return words[0] if words else platform.processor()


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def screen_table(results: Mapping[str, Any], chosen: Sequence[Entry]) -> Table:
    table = Table("entry", "status", "front end", box=None, pad_edge=False)
    for name in ("build", "bundle", "load", "first step", "loss", "gradients", "buffers"):
        table.add_column(name, justify="right")
    for line in results["entries"]:
        if key_of(line) in chosen:
            failed = line["status"] != "passed"
            table.add_row(str(key_of(line)), line["status"], line.get("front_end", ""), *figures(line), style="red" * failed)
    return table


def figures(line: Mapping[str, Any]) -> list[str]:
    errors = line.get("errors", {})
    seconds, size = line.get("build_seconds", {}).get("total"), line.get("bundle_bytes")
    times = [line.get("load_seconds"), line.get("first_step_seconds")]
    return [
        "" if seconds is None else f"{seconds:.1f} s",
        "" if size is None else f"{size / 1e6:.2f} MB",
        *("" if value is None else f"{value * 1e3:.1f} ms" for value in times),
        *(error_text(errors[kind]) if errors else "" for kind in ("loss", "gradients", "buffers")),
    ]


def error_text(error: float | None) -> str:
    return "differs" if error is None else f"{error:.1e}"


def markdown(results: Mapping[str, Any]) -> str:
    """A row an architecture; the largest relative error of any gradient, or the number of a reason below the table."""
    from zoo_models import ARCHITECTURES

    lines = {key_of(line): line for line in results["entries"]}
    reasons: list[str] = []
    rows = [
        "| model | parameters | front end | `portable` | `portable`, dynamic batch | `cpu` | `cpu` build | `cpu` load | bundle |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for item in ARCHITECTURES.values():
        portable, dynamic, native = (lines.get(Entry(item.name, *variant)) for variant in VARIANTS)
        known = {**(portable or {}), **(native or {})}
        if not known:
            continue
        cells = [error_cell(item.title, line, reasons) for line in (portable, dynamic, native)]
        build, size, load, *_ = figures(native or {})
        parameters = f"{known['parameters']:,}" if "parameters" in known else ""
        rows.append(f"| {' | '.join([item.title, parameters, known.get('front_end', ''), *cells, build, load, size])} |")
    versions = results["versions"]
    note = (
        "Two training steps and an inference of each bundle, in a process without the model's source, against eager: "
        "the largest relative error of any gradient. "
        f"torch {versions['torch']}, transformers {versions['transformers']}, {results['machine']['cpu']}, "
        f"{results['machine']['cores']} cores; by `scripts/zoo`."
    )
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*rows, "", note, *(["", *notes] if notes else [])])


VARIANTS = (("portable", False), ("portable", True), ("cpu", False))


def error_cell(title: str, line: Mapping[str, Any] | None, reasons: list[str]) -> str:
    if line is None:
        return ""
    if line["status"] == "passed":
        return f"{line['errors']['gradients']:.0e}" if line["errors"]["gradients"] else "0"
    reason = f"{title}, {line['target']}: {line['reason']}"
    if reason not in reasons:
        reasons.append(reason)
    return f"failed ({reasons.index(reason) + 1})"


def update_readme(results: Mapping[str, Any]) -> None:
    """Replace what is between the README's marks, if it has them."""
    text = README.read_text() if README.exists() else ""
    begin, end = (text.find(mark) for mark in MARKS)
    if 0 <= begin < end:
        README.write_text(f"{text[:begin]}{MARKS[0]}\n{markdown(results)}\n{text[end:]}")


if __name__ == "__main__":
    main()
