"""Records real calls of torch's operators, which :mod:`.operators` then changes into hostile ones.

torch's operator and module databases run under a dispatch mode, forward and backward. A call is kept
as JSON: sizes and types of tensors, and all other arguments as they are. Integer tensors keep values.
"""

from __future__ import annotations

import json
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .operators import CALLS

_KEPT = 3
"""Calls of each operator that are kept."""
_MAX_VALUES = 24
_SECONDS = 6


class _Recorder(TorchDispatchMode):
    """Keeps the first calls of each operator that differ in types and ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, dict[str, Any]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = self.calls.setdefault(str(function), {})
        if len(kept) < _KEPT:
            try:
                call = [[_spelled(arg) for arg in args], {key: _spelled(arg) for key, arg in (kwargs or {}).items()}]
                kept.setdefault(_kind(call), call)
            except TypeError:
                pass  # holds something that no graph can hold
        return function(*args, **(kwargs or {}))


def _kind(call: Any) -> str:
    """What two calls that exercise the same code have in common."""
    if isinstance(call, dict) and "tensor" in call:
        return f"{call['tensor']}{len(call['shape'])}"
    if isinstance(call, dict):
        return ",".join(f"{key}={_kind(value)}" for key, value in call.items())
    return f"[{','.join(map(_kind, call))}]" if isinstance(call, list) else type(call).__name__


def _spelled(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        if arg.layout != torch.strided or arg.numel() > 4096:
            raise TypeError
        spelled: dict[str, Any] = {"tensor": str(arg.dtype)[6:], "shape": list(arg.shape)}
        if not arg.is_floating_point() and not arg.is_complex() and arg.numel() <= _MAX_VALUES:
            spelled["values"] = arg.flatten().tolist()
        return spelled
    if isinstance(arg, (torch.dtype, torch.layout, torch.memory_format)):
        return {type(arg).__name__: str(arg)[6:]}
    if isinstance(arg, torch.device):
        return {"device": arg.type}
    if isinstance(arg, complex):
        return {"complex": [arg.real, arg.imag]}
    if isinstance(arg, (list, tuple)):
        return [_spelled(item) for item in arg]
    if arg is None or isinstance(arg, (bool, int, float, str)):
        return arg
    raise TypeError


class _TimeLimitError(Exception):
    pass


def _samples() -> Iterator[Callable[[], Any]]:
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    for entry in op_db:
        for dtype in (torch.float32, torch.int64, torch.complex64):
            if dtype in entry.supported_dtypes("cpu"):
                differentiable = entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
                for sample, _ in zip(entry.sample_inputs("cpu", dtype, requires_grad=differentiable), range(10), strict=False):
                    yield lambda entry=entry, s=sample: entry.op(s.input, *s.args, **s.kwargs)
    for info in module_db:
        for training in (True, False):
            inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
            for made in inputs[:4]:
                given, call = made.constructor_input, made.forward_input
                module = info.module_cls(*given.args, **given.kwargs).train(training)
                yield lambda module=module, call=call: module(*call.args, **call.kwargs)


def record() -> None:
    """Run the databases and write the calls to :data:`CALLS`."""

    def stop(*_: object) -> None:
        raise _TimeLimitError

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, stop)
    recorder = _Recorder()
    for call in _samples():
        signal.alarm(_SECONDS)
        try:
            with recorder:
                results = call()
                leaves = [t for t in torch.utils._pytree.tree_leaves(results) if getattr(t, "requires_grad", False)]
                if leaves:
                    torch.autograd.backward(leaves, [torch.ones_like(t) for t in leaves])
        except Exception:  # a sample may fail in every way; what it called until then is recorded
            continue
        finally:
            signal.alarm(0)
    calls = {name: list(kept.values()) for name, kept in sorted(recorder.calls.items()) if kept}
    CALLS.write_text("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(c)}" for n, c in calls.items()) + "\n}\n")
    print(f"{sum(map(len, calls.values()))} calls of {len(calls)} operators")
