"""Measures aotpack against eager and ``torch.compile``; one results file a section. scripts/bench/README.md explains them.

Every section measures its contenders alternately in one run and gives medians and ratios; ratios are what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from machine import provenance
from rich.console import Console

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent.parent
RESULTS = BENCH / "results"
CONTENDER = ROOT / "aotpack" / "measure" / "contender.py"
EXAMPLES = ("digits", "gpt")
GOALS = {"import": 1.05, "start": 100.0, "step": 1.0, "memory": 1.0, "build": 1.1, "recompute": 1.0}
LARGE_BATCH = 1024

console = Console(stderr=True, highlight=False, markup=False, width=None if sys.stderr.isatty() else 140)

STATIC = """
import sys
sys.path.insert(0, {folder!r})
from model import model, example_inputs
"""
"""An example without its dynamic_shapes: every size is as in its example inputs."""

INPUTS = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import model
torch.manual_seed(0)
inputs = model.example_inputs()
args, kwargs = inputs if len(inputs) == 2 and isinstance(inputs[1], dict) else (inputs, {})
if int(sys.argv[3]):
    args = tuple(a[:1].repeat(int(sys.argv[3]), *[1] * (a.dim() - 1)) for a in args)
torch.save((args, kwargs), sys.argv[2])
"""

WEIGHTS = """
import sys
from aotpack_loader import load
model = load(sys.argv[1], backend="portable")
print(sum({id(value): value.nbytes for value in model.state_dict(keep_vars=True).values()}.values()))
"""

IMPORT = "import time; a = time.perf_counter(), time.process_time(); {}; \
b = time.perf_counter(), time.process_time(); print(b[0] - a[0], b[1] - a[1])"


class BenchError(Exception):
    """A process that was to be measured failed."""


@dataclass
class Bench:
    """Where the measured processes work, and how often each is started."""

    work: Path
    quick: bool
    pin: bool

    def times(self, full: int, quick: int = 1) -> int:
        return quick if self.quick else full

    @cached_property
    def environment(self) -> dict[str, str]:
        """Caches of its own; Python's byte code cache is on, as it is for users."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TORCH", "AOTPACK", "OMP_", "MKL_"))}
        (self.work / "state").mkdir(mode=0o700, exist_ok=True)
        places = {"AOTPACK_CACHE": "cache", "AOTPACK_STATE": "state", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        for place in places.values():
            (self.work / place).mkdir(mode=0o700, exist_ok=True)
        return kept | {name: str(self.work / place) for name, place in places.items()}

    def python(self, *command: object, one_core: bool = True, **environment: str) -> str:
        prefix = ["taskset", "-c", str(max(os.sched_getaffinity(0)))] if self.pin and one_core else []
        words = [*prefix, sys.executable, *map(str, command)]
        done = subprocess.run(
            words,
            cwd=self.work,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise BenchError(f"`{' '.join(words)}` exited with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def json(self, *command: object, **keywords: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.python(*command, **keywords).strip().splitlines()[-1])
        return found

    def inputs(self, name: str, batch: int = 0) -> Path:
        """The example's inputs; ``batch`` repeats the first sample of each positional input."""
        path = self.work / f"{name}-{batch}.pt"
        if not path.exists():
            self.python("-c", INPUTS, model(name).parent, path, batch)
        return path

    def build(self, name: str, *options: str, static: bool = False, cache: bool = True) -> tuple[Path, dict[str, Any], float]:
        """The bundle of an example (built once per kind if ``cache``), the build's report and the process's seconds."""
        out = self.work / f"{name}{'-static' if static else ''}.aotpack"
        entry = model(name)
        if static:
            entry = self.work / f"{name}_static.py"
            entry.write_text(STATIC.format(folder=str(model(name).parent)))
        if not cache or not out.exists():
            words = [
                "-m",
                "aotpack.cli",
                "build",
                entry,
                "-o",
                out,
                "--json",
                *(options or BOTH),
                *([] if cache else ["--no-cache"]),
            ]
            start = time.perf_counter()
            report = json.loads(self.python(*words, one_core=False))
            seconds = time.perf_counter() - start
        else:
            report, seconds = {}, 0.0
        return out, report, seconds


BOTH = ("--target", "cpu", "--target", "portable")


def model(name: str) -> Path:
    return ROOT / "examples" / name / "model.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--quick", action="store_true", help="few repetitions, and nothing is written to results/")
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="do not pin one-thread processes to a core")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work here and leave bundles and caches for the next run")
    options = parser.parse_args()
    pin = options.pin and shutil.which("taskset") is not None
    with tempfile.TemporaryDirectory(prefix="aotpack-bench-") as temporary:
        work = options.keep.resolve() if options.keep else Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(work, options.quick, pin)
        try:
            for name in options.only:
                with console.status(name):
                    result = {**provenance(), "goal": GOALS[name], **SECTIONS[name](bench)}
                text = json.dumps(result, indent=2) + "\n"
                if not options.quick:
                    RESULTS.mkdir(exist_ok=True)
                    (RESULTS / f"{name}.json").write_text(text)
                console.print(f"{name}: {summary_line(result)}")
                if options.quick:
                    print(text, end="")
        except BenchError as error:
            sys.exit(f"bench: {error}")


def summary_line(result: Mapping[str, Any]) -> str:
    ratios = ", ".join(f"{key} {value:.3g}" for key, value in result["ratios"].items())
    return f"{ratios} (goal {result['goal']:g}; load {result['load_average']})"


# ---------------------------------------------------------------- sections


def imports(bench: Bench) -> dict[str, Any]:
    """``import torch`` against the loader, in fresh processes; and what a load and a step import besides."""
    statements = {
        "torch": "import torch",
        "aotpack_loader": "import aotpack_loader",
        "load": "from aotpack_loader import load",
        "load_after_torch": "import torch; a = time.perf_counter(), time.process_time(); from aotpack_loader import load",
    }
    found: dict[str, list[list[float]]] = {name: [] for name in statements}
    for number in range(bench.times(21, 3) + 1):
        for name in in_turns(statements, number):
            figures = [float(word) for word in bench.python("-I", "-c", IMPORT.format(statements[name])).split()]
            if number:  # the first round writes byte code
                found[name].append(figures)
    bundle, _, _ = bench.build("digits")
    added = {}
    for backend in ("cpu", "portable"):
        run = start_of(bench, "digits", "bundle", bundle=bundle, backend=backend)
        added[backend] = {"modules": run["modules_added"], "of_the_compiler": run["compiler_modules_added"]}
    wall = {name: statistics.median(value[0] for value in values) for name, values in found.items()}
    cpu = {name: statistics.median(value[1] for value in values) for name, values in found.items()}
    return {
        "processes": len(found["torch"]),
        "seconds": wall,
        "cpu_seconds": cpu,
        "ratios": {
            "aotpack_loader": wall["aotpack_loader"] / wall["torch"],
            "load": wall["load"] / wall["torch"],
            "load, processor time": cpu["load"] / cpu["torch"],
            "load, as what it adds after torch": 1 + wall["load_after_torch"] / wall["torch"],
        },
        "imported_by_load_and_step": added,
    }


def start(bench: Bench) -> dict[str, Any]:
    """From ``import torch`` to the end of the first step, in fresh processes."""
    examples = {}
    for name in EXAMPLES:
        bundle, _, _ = bench.build(name)
        contenders: dict[str, Callable[[], dict[str, Any]]] = {
            "eager": partial(start_of, bench, name, "eager"),
            "compile_warm": partial(start_of, bench, name, "compile"),
            "bundle_cpu": partial(start_of, bench, name, "bundle", bundle=bundle, backend="cpu"),
            "bundle_portable": partial(start_of, bench, name, "bundle", bundle=bundle, backend="portable"),
        }
        for run in contenders.values():
            run()  # fills torch.compile's cache, extracts the bundle's code and writes byte code
        runs = alternately(contenders, bench.times(7, 2))
        runs["compile_cold"] = [cold(bench, name, "compile", "TORCHINDUCTOR_CACHE_DIR") for _ in range(bench.times(3))]
        runs["bundle_cpu_first_load"] = [
            cold(bench, name, "bundle", "AOTPACK_CACHE", bundle=bundle, backend="cpu") for _ in range(bench.times(3))
        ]
        keys = (
            "t_from_import_to_first_step",
            "cpu_from_import_to_first_step",
            "t_import",
            "t_make",
            "t_first_step",
            "t_step_median",
        )
        examples[name] = {
            kind: {key: middle(run[key] for run in found) for key in keys} | {"processes": len(found)}
            for kind, found in runs.items()
        }
    whole = "t_from_import_to_first_step"
    return {
        "threads": 1,
        "examples": examples,
        "ratios": {name: e["compile_warm"][whole] / e["bundle_cpu"][whole] for name, e in examples.items()},
        # On a busy machine torch.compile, which has more to wait for, loses more time: this ratio is free of it, and leaves
        # out what its worker processes do.
        "ratios_processor_time": {
            name: e["compile_warm"]["cpu_" + whole[2:]] / e["bundle_cpu"]["cpu_" + whole[2:]] for name, e in examples.items()
        },
        "ratios_cold": {name: e["compile_cold"][whole] / e["bundle_cpu"][whole] for name, e in examples.items()},
        "over_a_step_seconds": {name: e["bundle_cpu"][whole] - e["bundle_cpu"]["t_step_median"] for name, e in examples.items()},
    }


def steps(bench: Bench) -> dict[str, Any]:
    """Steady step times, side by side in one process."""
    cases = {}
    for case, name, static in (("digits", "digits", True), ("digits_dynamic", "digits", False), ("gpt", "gpt", False)):
        bundle, _, _ = bench.build(name, static=static)
        for threads in (1, 0):
            words = [
                BENCH / "step.py", "--model", model(name), "--inputs", bench.inputs(name), "--threads", threads,
                "--bundle", f"cpu={bundle}", "--rounds", bench.times(21, 5), *(["--dynamic"] if case == "digits_dynamic" else []),
            ]  # fmt: skip
            found = bench.json(*words, one_core=threads == 1)
            cases[f"{case}, {'one thread' if threads else 'default threads'}"] = found
    return {"cases": cases, "ratios": {case: found["ratio_to_compile"]["cpu"] for case, found in cases.items()}}


def memory(bench: Bench) -> dict[str, Any]:
    """How far a step raises the resident set."""
    examples: dict[str, Any] = {}
    for name, batch in (("digits", LARGE_BATCH), ("gpt", 0)):
        bundle, _, _ = bench.build(name)
        common = ["--inputs", bench.inputs(name, batch), "--threads", 1]
        contenders = {
            "eager": partial(memory_of, bench, "--kind", "eager", "--model", model(name), *common),
            "compile": partial(memory_of, bench, "--kind", "compile", "--model", model(name), *common),
            "cpu": partial(memory_of, bench, "--kind", "bundle", "--bundle", bundle, "--backend", "cpu", *common),
            "portable": partial(memory_of, bench, "--kind", "bundle", "--bundle", bundle, "--backend", "portable", *common),
        }
        runs = alternately(contenders, bench.times(5))
        examples[name] = {kind: middle(run["peak_bytes"] for run in found) for kind, found in runs.items()}
    return {
        "batch": {"digits": LARGE_BATCH},
        "peak_bytes": examples,
        "ratios": {name: found["cpu"] / found["compile"] for name, found in examples.items()},
    }


def builds(bench: Bench) -> dict[str, Any]:
    """Build time against ``torch.compile`` for the same graphs with empty caches; sizes; a rebuild."""
    examples: dict[str, Any] = {}
    for name in EXAMPLES:
        built, compiled, default = [], [], []
        for _ in range(bench.times(3)):
            compiled.append(timed(partial(cold, bench, name, "compile", "TORCHINDUCTOR_CACHE_DIR")))
            built.append(empty_build(bench, name, "--target", "cpu", "--method", "train"))
        default.append(empty_build(bench, name))
        again = rebuild(bench, name)
        bundle = default[0][2]
        weights = sum_of_weights(bench, bundle)
        examples[name] = {
            "compile_seconds": middle(compiled),
            "build_seconds": middle(seconds for seconds, _, _ in built),
            "build_stages": {stage["name"]: round(stage["seconds"], 3) for stage in built[-1][1]["stages"]},
            "default_build_seconds": default[0][0],
            "rebuild_seconds": again,
            "bundle_bytes": bundle.stat().st_size,
            "weights_bytes": weights,
        }
    return {
        "examples": examples,
        "ratios": {name: found["build_seconds"] / found["compile_seconds"] for name, found in examples.items()},
    }


def recompute(bench: Bench) -> dict[str, Any]:
    """Bytes that a step keeps for its backward, with and without checkpoints and memory budgets; the same gradients."""
    models = {"blocks": ("cpu", "portable"), "gpt": ("portable",) if bench.quick else ("cpu", "portable")}
    found: dict[str, Any] = {}
    for name, targets in models.items():
        words = [word for target in targets for word in ("--target", target)]
        found[name] = bench.json(BENCH / "recompute.py", "--model", name, *words, one_core=False)
    return {
        "saved_bytes": found,
        "ratios": {
            f"{name}, {variant}, {target}": figures[target] / figures["eager"]
            for name, variants in found.items()
            for variant, figures in variants.items()
            for target in models[name]
        },
        "ratios_to_everything_saved": {
            f"{name}, {variant}, {kind}": variants[variant][kind] / variants["everything saved"][kind]
            for name, variants in found.items()
            for variant in variants
            for kind in ("eager", *models[name])
        },
    }


SECTIONS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "import": imports,
    "start": start,
    "step": steps,
    "memory": memory,
    "build": builds,
    "recompute": recompute,
}


# ---------------------------------------------------------------- one process


def start_of(
    bench: Bench,
    name: str,
    kind: str,
    *,
    bundle: Path | None = None,
    backend: str = "cpu",
    **environment: str,
) -> dict[str, Any]:
    """One run of contender.py, isolated, with one thread."""
    source = ["--model", model(name)] if bundle is None else ["--bundle", bundle, "--backend", backend]
    rest = ["--inputs", bench.inputs(name), "--threads", 1, "--iterations", 7, "--warmup", 2, "--json"]
    # Not pinned: torch.compile starts worker processes, which would take the core from it.
    return bench.json("-I", CONTENDER, "--kind", kind, *source, *rest, one_core=False, **environment)


def memory_of(bench: Bench, *words: object) -> dict[str, Any]:
    """One run of memory.py; malloc gives freed memory back at once."""
    trim = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_ARENA_MAX": "1"}
    return bench.json(BENCH / "memory.py", *words, **trim)


def cold(bench: Bench, name: str, kind: str, variable: str, **keywords: Any) -> dict[str, Any]:
    """The same with an empty cache directory."""
    with tempfile.TemporaryDirectory(dir=bench.work) as empty:
        return start_of(bench, name, kind, **{variable: empty}, **keywords)


def empty_build(bench: Bench, name: str, *options: str) -> tuple[float, dict[str, Any], Path]:
    with tempfile.TemporaryDirectory(dir=bench.work) as empty:
        out, report, seconds = Bench(Path(empty), bench.quick, bench.pin).build(name, *options, cache=False)
        kept = bench.work / f"{name}-built.aotpack"
        shutil.copy(out, kept)
    return seconds, report, kept


def rebuild(bench: Bench, name: str) -> float:
    """Seconds of a build whose graphs have not changed."""
    bench.build(name)
    (bench.work / f"{name}.aotpack").unlink()
    return bench.build(name)[2]


def sum_of_weights(bench: Bench, bundle: Path) -> int:
    return int(bench.python("-c", WEIGHTS, bundle))


# ---------------------------------------------------------------- statistics


def alternately(contenders: Mapping[str, Callable[[], Any]], times: int) -> dict[str, list[Any]]:
    """Run every contender ``times`` times in turns; every other turn goes backwards."""
    found: dict[str, list[Any]] = {name: [] for name in contenders}
    for number in range(times):
        for name in in_turns(contenders, number):
            found[name].append(contenders[name]())
    return found


def in_turns(names: Iterable[str], number: int) -> Sequence[str]:
    return list(names) if number % 2 == 0 else list(names)[::-1]


def middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
