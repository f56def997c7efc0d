"""Fuzzes the loader with real bundles that a hostile author has changed and signed anew.

A mutant (:mod:`.mutants`) goes through ``load``, one training step and one inference step, in a forked
worker with limits. What counts as a finding: the end of the process, more processor time
or memory than the limits, and an exception that is none of ours.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import mutants
from .mutants import Seed
from .operators import known_calls

SECONDS = 1.0
"""Of processor time for one mutant."""
GROWTH = 256 << 10
"""KiB that the process's memory may grow by, for one mutant."""
_ADDRESSES = 4 << 30
"""Bytes of addresses that the process may take beyond those of torch's libraries, which for CUDA are many."""
_BATCH = 400
_TORCHS_OWN = "one of the variables needed for gradient computation has been modified by an inplace operation"
"""What eager raises for a model that writes to a tensor it has saved. A bundle of such a model does the same."""


def arguments(method: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that fit a method, as far as its description makes sense."""
    import torch

    from aotpack_loader.devices.literals import literal
    from aotpack_loader.format import expressions, schema
    from aotpack_loader.runtime.tree import unflattener

    sizes = {symbol.name: min(max(symbol.minimum, symbol.hint or 4), 64) for symbol in method.symbols}
    leaves: list[Any] = []
    for leaf in method.leaves:
        if isinstance(leaf, schema.TensorLeaf):
            shape = [expressions.evaluate(size, sizes) if isinstance(size, str) else size for size in leaf.shape]
            count = 1
            for size in shape:
                count *= size
            if count > 1 << 16:
                raise ValueError("too large")
            tensor = torch.ones(shape, dtype=torch.float32).to(getattr(torch, leaf.dtype))
            leaves.append(tensor.requires_grad_(leaf.requires_grad))
        elif isinstance(leaf, schema.IntegerLeaf):
            leaves.append(sizes[leaf.size])
        else:
            leaves.append(literal(leaf.value))
    args, kwargs = unflattener(method.inputs)(iter(leaves))
    return args, kwargs


def use(path: str) -> str:
    """Load a bundle and run one step in each mode. Returns what ended it: ``ran``, or the name of the error.

    Raises:
        Exception: one that is not ours.
    """
    import torch

    import aotpack_loader
    from aotpack_loader.errors import AotpackError

    try:
        model = aotpack_loader.load(path, backend="portable")
    except AotpackError as error:
        return type(error).__name__
    outcome = "ran"
    for name, method in model.aotpack.program.methods.items():
        called = model.aotpack.method(method.function) if method.function else model
        for mode in method.serves:
            try:
                args, kwargs = arguments(method)
            except Exception:  # nobody could call it
                continue
            model.train(mode.training)
            try:
                with torch.set_grad_enabled(mode.grad):
                    results = called(*args, **kwargs)
                tensors = [t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
                heads = [t for t in tensors if t.requires_grad and t.grad_fn is not None]
                if heads:
                    torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])
            except AotpackError as error:
                outcome = f"{name}: {type(error).__name__}"
            except RuntimeError as error:
                if not str(error).startswith(_TORCHS_OWN):
                    raise
                outcome = f"{name}: torch's own"
    return outcome


class Finding(NamedTuple):
    """A mutant that did what it should not."""

    number: int
    seed: str
    what: str
    where: str


def mutator(seeds: Sequence[Seed]) -> str:
    """What decides which mutant a number stands for: seeds, mutations and the list of operators."""
    found = hashlib.sha256(Path(mutants.__file__).read_bytes())
    for seed in seeds:
        found.update(seed.name.encode() + hashlib.sha256(seed.data).digest())
    found.update(" ".join(_operators()).encode())
    return found.hexdigest()[:16]


def mutant(seeds: Sequence[Seed], number: int) -> bytes:
    """The mutant with that number, the same every time."""
    return mutants.mutant(seeds[number % len(seeds)], random.Random(number), _operators())


@functools.cache
def _operators() -> tuple[str, ...]:
    """Most are allowed. A change of the list of allowed ones does not change the mutants."""
    return tuple(sorted(name for name in known_calls() if name.startswith("aten.")))


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = 1024 * memory("VmSize") + _ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def memory(field: str) -> int:
    """KiB of this process that are resident (``VmRSS``), or were at most (``VmHWM``), or are mapped (``VmSize``)."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{field}:")[2].split(None, 1)[0])


def forget_peak() -> None:
    """Let ``VmHWM`` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def _work(seeds: Sequence[Seed], numbers: Sequence[int], send: int, folder: str) -> None:
    """Run mutants in a fork, and send what happens."""
    _limit()
    path = os.path.join(folder, "mutant.aotpack")
    for number in numbers:
        name = seeds[number % len(seeds)].name
        Path(path).write_bytes(mutant(seeds, number))
        _send(send, ["at", number])
        signal.setitimer(signal.ITIMER_PROF, 4 * SECONDS)
        forget_peak()
        before, start = memory("VmRSS"), time.process_time()
        try:
            _send(send, ["end", use(path)])
        except BaseException as error:  # what is not ours is a finding
            last = traceback.extract_tb(error.__traceback__)[-1]
            ours = [f for f in traceback.extract_tb(error.__traceback__) if "aotpack_loader" in f.filename][-1:]
            where = [f"{Path(f.filename).name}:{f.lineno}" for f in (*ours, last)]
            _send(send, ["found", number, name, f"{type(error).__name__}: {str(error)[:160]}", " ".join(where)])
        taken, grown = time.process_time() - start, memory("VmHWM") - before
        if taken > SECONDS:
            _send(send, ["found", number, name, "hang", f"{taken:.1f} s"])
        if grown > GROWTH:
            _send(send, ["found", number, name, "allocation", f"{grown >> 10} MiB"])
        signal.setitimer(signal.ITIMER_PROF, 0)


def _send(handle: int, message: Sequence[object]) -> None:
    os.write(handle, json.dumps(message).encode() + b"\n")


class Run:
    """Counts and findings of mutants, in batches of one fork each."""

    def __init__(self, seeds: Sequence[Seed], *, show: bool = True) -> None:
        self.seeds = seeds
        self.mutants = 0
        self.outcomes: dict[str, int] = {}
        self.findings: list[Finding] = []
        self._show = show

    def batch(self, numbers: Sequence[int], folder: str) -> int:
        """Run mutants up to the first that ends the process. Returns how many ran."""
        receive, send = os.pipe()
        child = os.fork()
        if not child:
            os.close(receive)
            with contextlib.suppress(BaseException):
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115
                os.dup2(sys.stderr.fileno(), 2)
                _work(self.seeds, numbers, send, folder)
                os._exit(0)
            os._exit(9)
        os.close(send)
        last, before = numbers[0], self.mutants
        with os.fdopen(receive) as lines:  # the fork's end of the pipe closes with it
            for line in lines:
                kind, *rest = json.loads(line)
                if kind == "at":
                    last, self.mutants = rest[0], self.mutants + 1
                elif kind == "end":
                    word = rest[0].rpartition(" ")[2]
                    self.outcomes[word] = self.outcomes.get(word, 0) + 1
                else:
                    self._found(Finding(*rest))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not status:
            return len(numbers)
        what = "hang" if status == -signal.SIGPROF else f"crash {status}"
        self._found(Finding(last, self.seeds[last % len(self.seeds)].name, what, ""))
        return max(self.mutants - before, 1)

    def _found(self, finding: Finding) -> None:
        if self._show:
            print(*finding, flush=True)
        self.findings.append(finding)


def fuzz(
    seeds: Sequence[Seed],
    numbers: Sequence[int],
    *,
    seconds: float = 1e9,
    show: bool = True,
    save: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Run mutants until they or the seconds are used up.

    Args:
        seeds: the bundles to change.
        numbers: of the mutants.
        seconds: of the clock, from when the first begins. A batch is never cut short.
        show: print findings as they come.
        save: is given counts and findings after each batch.

    Returns:
        The number after the last that ran, counts, and findings.
    """
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run, done = Run(seeds, show=show), 0
    found: dict[str, Any] = {"next": numbers[0] if numbers else 0, "mutants": 0, "outcomes": {}, "findings": []}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        for seed in seeds:  # imports and compiles what the forks then share
            path = Path(folder, "seed.aotpack")
            path.write_bytes(seed.data)
            use(str(path))
        mutants.signatures(_operators())
        gc.collect()
        gc.freeze()  # a collection in a fork would copy all pages
        ends = time.monotonic() + seconds
        while done < len(numbers) and time.monotonic() < ends:
            done += run.batch(numbers[done : done + _BATCH], folder)
            findings = [finding._asdict() for finding in run.findings]
            found = {"next": numbers[done - 1] + 1, "mutants": run.mutants, "outcomes": run.outcomes, "findings": findings}
            save(found)
    return found


def vectors(root: Path, most: int = 1 << 17) -> list[Seed]:
    """The valid vectors with portable targets that are small enough."""
    return list(_vectors(root, most))


def _vectors(root: Path, most: int) -> Iterator[Seed]:
    for folder in sorted((root / "spec/vectors/v1/valid").iterdir()):
        data = (folder / "bundle.aotpack").read_bytes()
        if len(data) <= most and b'"portable"' in data:
            yield Seed(folder.name, data)
