"""What the benchmarks share: models, processes with separate caches, alternation of contenders, medians."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aotpack.writer.cache import revision_of
from devtools.paths import RESULTS, ROOT

BENCH = Path(__file__).resolve().parent

PROCESSES = BENCH / "processes"
CONTENDER = ROOT / "aotpack" / "tools" / "measure" / "contender.py"
BOTH = ("--target", "cpu", "--target", "portable", "--method", "train", "--method", "infer")
"""Options of a build that serves most benchmarks, so that it is built once for all."""
WITH_OPTIMIZER = ("--target", "cpu", "--method", "train", "--optimizer", "adamw", "--no-check")
"""Options of a build whose bundle holds the steps of AdamW."""


_ENTRY = """
from pathlib import Path
from devtools.bench.processes.batches import repeated
from devtools.files import import_file
source = import_file(Path({file!r}), {name!r})
def model(): return source.model(**{options!r})
def example_inputs(): return repeated(source.example_inputs(**{inputs!r}), {batch})
"""

_INPUTS = """
import runpy, sys, torch
torch.manual_seed(0)
inputs = runpy.run_path(sys.argv[1])["example_inputs"]()
torch.save(inputs if len(inputs) == 2 and isinstance(inputs[1], dict) else (inputs, {}), sys.argv[2])
"""


class BenchError(Exception):
    """A process to be measured failed."""


@dataclass(frozen=True)
class Case:
    """A model to measure: its file, the arguments of its factories, and the number of copies of its first sample.

    ``batch`` 0 keeps the example inputs. Sizes are static unless ``dynamic``; then they vary as the
    file declares.
    """

    base: str
    file: Path
    options: Mapping[str, object] = field(default_factory=dict)
    batch: int = 0
    dynamic: bool = False
    inputs: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name for its files."""
        given = map(str, (*self.options.values(), *self.inputs.values()))
        parts = [self.base, *given, str(self.batch or ""), "dynamic" if self.dynamic else ""]
        return "-".join(part for part in parts if part)


@dataclass(frozen=True)
class Built:
    """A bundle, the build's report, and its cost in seconds and bytes, including the compiler's processes."""

    bundle: Path
    report: dict[str, Any]
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def example(name: str, **keywords: Any) -> Case:
    return Case(name, ROOT / "examples" / name / "model.py", **keywords)


def network(name: str, **keywords: Any) -> Case:
    """A model of ``devtools/bench/models``."""
    return Case(name, BENCH / "models" / f"{name}.py", **keywords)


@dataclass
class Bench:
    """Where the measured processes work, what they run on, and how often each is started."""

    work: Path
    quick: bool
    pin: bool
    networks: Sequence[str] | None = None
    python_path: Path = Path(sys.executable)
    results: Path = RESULTS
    variables: Mapping[str, str] = field(default_factory=dict)

    def times(self, full: int, quick: int = 1) -> int:
        return quick if self.quick else full

    @cached_property
    def environment(self) -> dict[str, str]:
        """An environment with separate caches. Python's bytecode cache is enabled, as for users."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TORCH", "AOTPACK", "OMP_", "MKL_"))}
        directories = {"AOTPACK_CACHE": "cache", "AOTPACK_STATE": "state", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
        for directory in directories.values():
            (self.work / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        return kept | {name: str(self.work / directory) for name, directory in directories.items()} | self.variables

    def command(self, *words: object, one_core: bool = True) -> list[str]:
        prefix = ["taskset", "-c", str(max(os.sched_getaffinity(0)))] if self.pin and one_core else []
        return [*prefix, str(self.python_path), *map(str, words)]

    def python(self, *words: object, one_core: bool = True, **environment: str) -> str:
        """The output of a Python process."""
        command = self.command(*words, one_core=one_core)
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise BenchError(f"`{' '.join(command)}` exited with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def check_checkout(self) -> None:
        """Check that the measured processes run this checkout, whose revision the results name.

        Raises:
            BenchError: they import aotpack or its loader from elsewhere.
        """
        lines = self.python("-c", "import aotpack, aotpack_loader; print(aotpack.__file__, aotpack_loader.__file__, sep='\\n')")
        for found in map(Path, lines.splitlines()):
            if not found.resolve().is_relative_to(ROOT.resolve()):
                hint = "Run scripts/setup there, and this with its Python. PYTHONPATH does not reach the processes."
                raise BenchError(f"{self.python_path} imports {found}, which is not in {ROOT}. {hint}")

    def json(self, *words: object, **keywords: Any) -> dict[str, Any]:
        """The last line of a Python process's output, which is JSON."""
        found: dict[str, Any] = json.loads(self.python(*words, **keywords).strip().splitlines()[-1])
        return found

    def source(self, case: Case) -> Path:
        """The case as a ``model.py``."""
        if case.dynamic:
            return case.file
        path = self.work / f"{case.name}_source.py"
        path.write_text(
            _ENTRY.format(
                file=str(case.file),
                name=case.file.stem,
                options=dict(case.options),
                inputs=dict(case.inputs),
                batch=case.batch,
            )
        )
        return path

    def inputs(self, case: Case) -> Path:
        """The case's arguments, written by ``torch.save``."""
        path = self.work / f"{case.name}-inputs.pt"
        if not path.exists():
            self.python("-c", _INPUTS, self.source(case), path)
        return path

    def bundle(self, case: Case, *options: str) -> Path:
        """The bundle of a case with these options of ``aotpack build``, built once by the same compiler."""
        out = self.work / f"{'-'.join([case.name, *(word.strip('-') for word in options)]).replace(':', '.')}.aotpack"
        note, compiler = out.with_suffix(".compiler"), compiler_revision()
        if not out.exists() or not note.exists() or note.read_text() != compiler:
            note.unlink(missing_ok=True)
            self.python("-m", "aotpack.tools.cli", "build", self.source(case), "-o", out, "--json", *options, one_core=False)
            note.write_text(compiler)
        return out

    def artifact(self, case: Case, kind: str) -> Path:
        """The artifact from which a peer starts without compiling, made once.

        Peers are ``aot_compile``, ``export`` and ``aoti``.
        """
        out = self.work / f"{case.name}-{kind}.{'bin' if kind == 'aot_compile' else 'pt2'}"
        if not out.exists():
            words = ["--kind", kind, "--model", self.source(case), "--inputs", self.inputs(case), "--out", out]
            self.python(PROCESSES / "artifact.py", *words, one_core=False)
        return out

    def build(self, case: Case, *options: str) -> Built:
        """Measure a build that uses nothing from the compile cache.

        Both sides exclude what a machine makes only once and is independent of the model. Here that
        is the call library, and for ``torch.compile`` the headers.
        """
        with self.empty("TORCHINDUCTOR_CACHE_DIR") as caches:
            out = self.work / f"{case.name}-measured.aotpack"
            words = ["-m", "aotpack.tools.cli", "build", self.source(case), "-o", out, "--json", "--no-cache", *options]
            seconds, found = timed(lambda: self.json(PROCESSES / "peak.py", *words, one_core=False, **caches))
        return Built(out, json.loads(found["output"]), seconds, found["cpu_seconds"], found["peak_bytes"])

    @contextlib.contextmanager
    def empty(self, *variables: str) -> Iterator[dict[str, str]]:
        """Environment variables that name empty directories, which are removed afterwards."""
        folders = {variable: tempfile.mkdtemp(dir=self.work) for variable in variables}
        try:
            yield folders
        finally:
            for folder in folders.values():
                shutil.rmtree(folder, ignore_errors=True)

    def start(self, kind: str, case: Case, *words: object, **environment: str) -> dict[str, Any]:
        """One isolated run of contender.py with one thread.

        It is not pinned, because torch.compile starts worker processes.
        """
        source = ["--model", self.source(case)] if kind in ("eager", "compile", "aot_compile") else []
        rest = ["--inputs", self.inputs(case), "--threads", 1, "--iterations", 5, "--warmup", 1, "--json", *words]
        spawned = ["--spawned", time.perf_counter()]
        return self.json("-I", CONTENDER, "--kind", kind, *source, *rest, *spawned, one_core=False, **environment)

    def cold(self, case: Case, number: int = 0) -> dict[str, Any]:
        """One step of ``torch.compile`` with an empty cache.

        Returns its figures, and the seconds and peak memory of the whole process.

        It takes long and two benchmarks need it, so the run with index ``number`` is made once.
        """
        path = self.work / f"{case.name}-cold-{number}.json"
        if not path.exists():
            path.write_text(json.dumps(self._cold(case)))
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def _cold(self, case: Case) -> dict[str, Any]:
        with self.empty("TORCHINDUCTOR_CACHE_DIR") as caches:
            return self.compiled(case, **caches)

    def compiled(self, case: Case, **environment: str) -> dict[str, Any]:
        """One step of ``torch.compile`` in this environment, with the seconds and peak memory of the whole process."""
        words = ["-I", CONTENDER, "--kind", "compile", "--model", self.source(case), "--inputs", self.inputs(case)]
        words += ["--threads", 1, "--iterations", 1, "--warmup", 0, "--json", "--spawned", time.perf_counter()]
        seconds, found = timed(lambda: self.json(PROCESSES / "peak.py", *words, one_core=False, **environment))
        figures = json.loads(found["output"].strip().splitlines()[-1])
        took = {f"process_{name}": found[name] for name in ("cpu_seconds", "peak_bytes")}
        return {**figures, "process_seconds": seconds, **took}


def compiler_revision() -> str:
    """A hash of the sources that decide what is in a bundle, and of torch's version."""
    package = ROOT / "aotpack"
    folders = [package / name for name in ("_torch", "capture", "graph", "guards", "model", "partition", "signature", "targets")]
    return f"{revision_of(*folders)} torch {version('torch')}"


def able(contenders: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Run each contender once, unmeasured. Returns those that work, and why peers fail. A bundle must work."""
    works: dict[str, Callable[[], Any]] = {}
    left_out: dict[str, str] = {}
    for name, run in contenders.items():
        try:
            run()
        except BenchError as error:
            if name.startswith(("bundle", "cpu", "portable")):
                raise
            left_out[name] = str(error).strip().splitlines()[-1]
        else:
            works[name] = run
    return works, left_out


def alternately(contenders: Mapping[str, Callable[[], Any]], times: int) -> dict[str, list[Any]]:
    """Run every contender ``times`` times in turns. Every other turn runs in reverse order."""
    found: dict[str, list[Any]] = {name: [] for name in contenders}
    for number in range(times):
        for name in in_turns(contenders, number):
            found[name].append(contenders[name]())
    return found


def in_turns(names: Iterable[str], number: int) -> Sequence[str]:
    return list(names) if number % 2 == 0 else list(names)[::-1]


def middle(values: Iterable[float | None]) -> float | None:
    """The median of the known values."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and the result."""
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result
