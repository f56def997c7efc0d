"""Fuzzes the operators that unknown bundles may call, under guard pages.

Recorded calls (:mod:`.record`) are changed: sizes that do not agree, other types, indices out of
range, extreme integers. The checks of the loader run first, as they do for a bundle. What gets past
them runs in a worker process. A worker that dies or hangs names the call.
"""

from __future__ import annotations

import copy
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).parent / "guard.c"
CALLS = Path(__file__).parent / "calls.json"
"""Calls that :mod:`.record` has recorded."""
MORE_CALLS = Path(__file__).parent / "more_calls.json"
"""Calls of operators that torch's databases do not reach, written by hand."""
_EXTREME = (-(2**63), -(2**31), -7, -2, -1, 0, 1, 2, 3, 5, 64, 1000, 10**6, 2**31, 2**40, 2**62, 2**63 - 1)
_INDICES = (-(2**63), -(10**9), -100000, -5, -1, 0, 1, 4, 100, 255, 5000, 100000, 10**9, 2**40, 2**63 - 1)
_FLOATS = (
    0.0, -0.0, -1.0, 0.5, 1e-3, 1e-19, -1e-19, 1e-45, 5e-324, -5e-324, 2.0**-149, 1e19, 1e38, 1e39, 1e308, -1e308,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
"""Zeros, subnormal, tiny and huge numbers: a kernel converts what it computes of them to an integer."""
_DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "bfloat16", "complex64", "int8", "int16", "float16")
_TEXTS = ("", "bogus", "none", "tanh", "floor", "trunc", "sum", "mean", "amax", "ij", "L", "left", "right")
_SECONDS = 2.0
_SHAPES = ([], [0], [1], [3], [2, 3], [3, 2], [2, 3, 4], [1, 0, 2], [2, 3, 4, 5], [1, 2, 6, 6], [1, 2, 3, 4, 5])

Call = list[Any]


class Outcome(NamedTuple):
    """What calls came to: what ended the process (empty: nothing), the last call, and how many ran or were refused."""

    ending: str
    at: int
    ran: int
    refused: int
    wrote: list[int]


def known_calls() -> dict[str, list[Call]]:
    """Honest calls by operator, to change."""
    calls: dict[str, list[Call]] = json.loads(CALLS.read_text()) | json.loads(MORE_CALLS.read_text())
    return calls


def guard_library() -> str:
    """Compile the library of guard pages. Returns its path."""
    path = Path(tempfile.gettempdir()) / f"aotpack-guard-{os.getuid()}-{SOURCE.stat().st_mtime_ns}.so"
    if not path.exists():
        made = f"{path}.{os.getpid()}"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, str(SOURCE), "-ldl"], check=True)
        os.replace(made, path)
    return str(path)


def _is_tensor(arg: Any) -> bool:
    return isinstance(arg, dict) and "tensor" in arg


def _slots(node: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every argument in a call, with what holds it."""
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    for key in list(keys):
        found.append((node, key))
        if isinstance(node[key], list) or (isinstance(node[key], dict) and not _is_special(node[key])):
            _slots(node[key], found)
    return found


def _is_special(arg: Any) -> bool:
    return isinstance(arg, dict) and bool(arg.keys() & {"tensor", "dtype", "layout", "memory_format", "device", "complex"})


def mutated(call: Call, generator: random.Random) -> Call:
    """A call with one to three changes."""
    changed: Call = copy.deepcopy(call)
    for _ in range(generator.choice((1, 1, 2, 3))):
        slots = _slots(changed[0], []) + _slots(changed[1], [])
        if not slots:
            break
        numbers = [(holder, key) for holder, key in slots if holder[key] is None or isinstance(holder[key], float)]
        holder, key = generator.choice(numbers if numbers and generator.random() < 0.3 else slots)
        holder[key] = _changed(holder[key], [h[k] for h, k in slots if _is_tensor(h[k])], generator)
    return changed


def _changed(arg: Any, tensors: list[Any], generator: random.Random) -> Any:
    if _is_tensor(arg):
        return _changed_tensor(dict(arg), tensors, generator)
    if isinstance(arg, bool):
        return not arg
    if isinstance(arg, int):
        return generator.choice((*_EXTREME, arg + 1, arg - 1))
    if isinstance(arg, float):
        return generator.choice(_FLOATS)
    if isinstance(arg, str):
        return generator.choice(_TEXTS)
    if isinstance(arg, dict) and "dtype" in arg:
        return {"dtype": generator.choice(_DTYPES)}
    if isinstance(arg, list):
        kind = generator.randrange(4)
        if kind == 0 or not arg:
            return []
        if kind == 1:
            return arg[:-1]
        return [*arg, copy.deepcopy(generator.choice(arg))] if kind == 2 else [_changed(arg[0], tensors, generator), *arg[1:]]
    if arg is None and tensors and generator.random() < 0.5:
        return copy.deepcopy(generator.choice(tensors))
    return None if arg is not None else generator.choice((0, 1, 2, [1], True, *_FLOATS))


def _changed_tensor(tensor: dict[str, Any], tensors: list[Any], generator: random.Random) -> Any:
    shape = list(tensor["shape"])
    kind = generator.randrange(9)
    if kind == 8 and generator.random() < 0.3:
        return None
    if kind <= 1 and shape:
        at = generator.randrange(len(shape))
        shape[at] = generator.choice((0, 1, 2, max(shape[at] - 1, 0), shape[at] + 1, 2 * shape[at], 17))
    elif kind == 2:
        shape.insert(generator.randint(0, len(shape)), generator.choice((0, 1, 2, 3)))
    elif kind == 3 and shape:
        shape.pop(generator.randrange(len(shape)))
    elif kind == 4:
        tensor["tensor"] = generator.choice(_DTYPES)
    elif kind == 5:
        return copy.deepcopy(generator.choice(tensors)) if tensors else tensor
    elif kind == 6:
        shape = list(generator.choice(_SHAPES))
    else:
        tensor["strange"] = generator.randrange(1, 1 << 30)
    tensor["shape"] = shape
    return tensor


def built(arg: Any) -> Any:
    """The value of a spelled argument."""
    import torch

    if _is_tensor(arg):
        return _tensor(arg)
    if isinstance(arg, list):
        return [built(item) for item in arg]
    if isinstance(arg, dict):
        ((kind, value),) = arg.items()
        if kind == "complex":
            return complex(*value)
        return torch.device("cpu") if kind == "device" else getattr(torch, value)
    return arg


def _tensor(spelled: dict[str, Any]) -> Any:
    import torch

    dtype, shape = getattr(torch, spelled["tensor"]), spelled["shape"]
    generator = random.Random(str(spelled))
    if dtype.is_floating_point or dtype.is_complex:
        tensor = torch.randn(shape, dtype=torch.float32).to(dtype)
    else:
        values = spelled.get("values")
        count = tensor_size(shape)
        usual = values if values is not None and len(values) == count else [generator.randrange(3) for _ in range(count)]
        tensor = torch.tensor(usual, dtype=torch.int64).reshape(shape).to(dtype)
    strange = spelled.get("strange")
    if strange:
        tensor = _strange(tensor, random.Random(strange))
    return tensor


def _strange(tensor: Any, generator: random.Random) -> Any:
    """A tensor with other values or strides."""
    import torch

    if not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() and generator.random() < 0.75:
        limits = torch.iinfo(tensor.dtype) if tensor.dtype != torch.bool else None
        value = generator.choice(_INDICES)
        if limits is not None:
            value = min(max(value, limits.min), limits.max)
        flat = tensor.flatten()
        flat[generator.randrange(flat.numel()) if generator.random() < 0.5 else slice(None)] = value
        return flat.reshape(tensor.shape)
    kind = generator.randrange(4)
    if kind == 0 and tensor.dim() >= 2:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 1 and tensor.dim():
        return tensor[..., :1].expand(tensor.shape) if tensor.shape[-1] else tensor
    if kind == 2 and tensor.dim():
        return torch.stack([tensor, tensor], -1)[..., 1]
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    flat = tensor.flatten()
    flat[generator.randrange(flat.numel()) if generator.random() < 0.5 else slice(None)] = generator.choice(_FLOATS)
    return flat.reshape(tensor.shape)


def tensor_size(shape: Sequence[int]) -> int:
    """The number of elements."""
    count = 1
    for size in shape:
        count *= size
    return count


def serve() -> None:
    """Run calls in a worker: each line of the input names an operator, the first and last call, and whether they are checked.

    Each line runs in a fork, so that a crash costs no start of torch.
    """
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    calls = known_calls()
    send = os.dup(1)
    os.dup2(2, 1)  # MKL writes complaints of its own to the standard output
    for line in sys.stdin:
        name, first, last, checked = json.loads(line)
        child = os.fork()
        if not child:
            _run(_function(name, checked), name, calls[name], range(first, last), send)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(send, f"end {status}\n".encode())


def _run(function: Callable[..., Any], name: str, recorded: list[Call], numbers: range, send: int) -> None:
    """Run changed calls, and say which one runs."""
    import torch

    refused = ran = 0
    for number in numbers:
        os.write(send, f"at {number}\n".encode())
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)  # of processor time; its signal ends the process
        call = call_number(name, recorded, number)
        try:
            args, kwargs = built(call[0]), {key: built(arg) for key, arg in call[1].items()}
            before = [tensor.clone() if isinstance(tensor, torch.Tensor) else None for tensor in args]
            function(*args, **kwargs)
            ran += 1
            if any(kept is not None and not _is_same(kept, tensor) for kept, tensor in zip(before, args, strict=True)):
                os.write(send, f"wrote {number}\n".encode())
        except Exception:  # any exception is a refusal: what matters here is that the process lives
            refused += 1
    os.write(send, f"done {ran} {refused}\n".encode())


def _is_same(before: Any, after: Any) -> bool:
    import torch

    same = before.shape == after.shape and before.dtype == after.dtype
    return same and torch.equal(before.view(torch.uint8), after.contiguous().view(torch.uint8)) if before.dim() else same


def call_number(name: str, recorded: list[Call], number: int) -> Call:
    """The changed call with that number, the same every time."""
    generator = random.Random(f"{name} {number}")
    return mutated(recorded[number % len(recorded)], generator)


def _function(name: str, checked: bool) -> Callable[..., Any]:
    import torch

    space, packet, overload = name.split(".")
    operator = getattr(getattr(getattr(torch.ops, space), packet), overload)
    if not checked:
        return operator
    from aotpack_loader.devices.sandbox.untrusted import implementation

    return implementation(name)


class Worker:
    """A worker process."""

    def __init__(self) -> None:
        environment = {**os.environ, "LD_PRELOAD": guard_library(), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from devtools.fuzz.operators import serve; serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, preexec_fn=_limit,
        )  # fmt: skip

    def run(self, name: str, first: int, last: int, *, checked: bool) -> Outcome:
        """Run the calls with these numbers, up to the first that ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, first, last, checked]).encode() + b"\n")
        self._process.stdin.flush()
        at, ran, refused, wrote = first, 0, 0, []
        while line := self._process.stdout.readline().decode():
            word, *numbers = line.split()
            if word == "at":
                at = int(numbers[0])
            elif word == "wrote":
                wrote.append(at)
            elif word == "done":
                ran, refused = int(numbers[0]), int(numbers[1])
            else:
                return Outcome(_ending(int(numbers[0])), at, ran, refused, wrote)
        raise RuntimeError("the fuzzer's own process has ended")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def _ending(status: int) -> str:
    """What ended a fork: empty if nothing did."""
    if status == -signal.SIGPROF:
        return f"more than {_SECONDS} s"
    return signal.Signals(-status).name if status < 0 else "an error of the fuzzer" if status else ""


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (300 << 30, 300 << 30))


Results = dict[str, Any]


def fuzz(
    names: Sequence[str],
    count: int,
    *,
    checked: bool = True,
    most: int = 3,
    start: int = 0,
    before: Results | None = None,
    save: Callable[[Results], None] = lambda found: None,
) -> Results:
    """Run ``count`` changed calls of each operator.

    Args:
        names: of the operators.
        count: of calls.
        checked: with the checks of the loader.
        most: findings of one operator, before the next one's turn comes.
        start: number of the first call.
        before: results of a run that was stopped. It goes on after the operators that these hold.
        save: is given the results after each operator.

    Returns:
        Crashes and hangs by operator, with such calls, and counts.
    """
    recorded = known_calls()
    found: Results = before or {"operators": [], "without_calls": [], "ran": 0, "refused": 0, "wrote": {}, "found": {}}
    worker = Worker()
    for name in sorted(set(names) - set(found["operators"])):
        if name not in recorded:
            found["without_calls"].append(name)
            continue
        at, last, wrong = start, start + count, []
        while at < last and len(wrong) < most:
            outcome = worker.run(name, at, last, checked=checked)
            found["ran"] += outcome.ran
            found["refused"] += outcome.refused
            if outcome.wrote:
                found["wrote"].setdefault(name, outcome.wrote[0])
            if not outcome.ending:
                break
            call = json.dumps(call_number(name, recorded[name], outcome.at))
            wrong.append({"what": outcome.ending, "number": outcome.at, "call": call})
            print(f"{name}: {outcome.ending} in call {outcome.at}: {call[:400]}", flush=True)
            at = outcome.at + 1
        if wrong:
            found["found"][name] = wrong
        found["operators"].append(name)
        save(found)
    worker.close()
    return found
