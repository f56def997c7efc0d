"""Calls a function on a sample, and records what a caller sees. Imports nothing of the compiler."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch

from aotpack.checking.observation import Observation, Tensors, copied, differences, tensors_in
from devtools.paths import ROOT

from .samples import Sample, twins


def given(sample: Sample) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """New arguments and their leaves. A written argument must not be a leaf that requires grad."""
    leaves = twins(sample.tensors)
    results = {i for i in sample.written if leaves[i].requires_grad}
    return [x.clone(memory_format=torch.preserve_format) if i in results else x for i, x in enumerate(leaves)], leaves


def observe(function: Callable[..., Any], sample: Sample) -> Observation:
    """Call ``function`` on new arguments, compute gradients, and record what a caller sees."""
    seen = Observation()
    tensors, leaves = given(sample)
    named = {f"args[{i}]": tensor for i, tensor in enumerate(tensors)}
    versions = {path: tensor._version for path, tensor in named.items()}
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(*tensors)
        except Exception as error:
            seen.error = error
        else:
            seen.see_result(result)
            seen.see_tensors(tensors_in(result, "out") | named, {p: x for p, x in named.items() if x.layout == torch.strided})
            seen.written = {path for path, tensor in named.items() if tensor._version != versions[path]}
            seen.constants["generator"] = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
            seen.phase = "backward"
            written = {path: tensor for path, tensor in named.items() if path in seen.written}
            try:
                _backward(tensors_in(sample.differentiated(result), "out") | written)
            except Exception as error:
                seen.error = error
    seen.after = {f"gradient {i}": None if leaf.grad is None else copied(leaf.grad) for i, leaf in enumerate(leaves)}
    seen.after |= {f"{path} afterwards": copied(tensor) for path, tensor in named.items()}
    return seen


def _backward(roots: Tensors) -> None:
    generator = torch.Generator().manual_seed(7)
    distinct = {id(tensor): tensor for tensor in roots.values() if tensor.requires_grad and tensor.grad_fn is not None}
    if distinct:
        gradients = [torch.randn(tensor.shape, generator=generator).to(tensor.dtype) for tensor in distinct.values()]
        torch.autograd.backward(list(distinct.values()), gradients)


def compare(sample: Sample, eager: Observation, other: Observation, *, compiled: bool = False, made: bool = False) -> list[str]:
    """Differences between two observations, with these exceptions:

    - Undefined values are not compared.
    - An argument that is a lazy conjugate is resolved before a graph runs (spec, A4). Results need
      not be conjugates.
    - Values of a half type may differ if the other's are nearer to the float64 result. Some of
      eager's kernels round more often than torch's decompositions.
    - Values of ``compiled`` code may be up to twice as far from it, because it adds and rounds in
      another order.
    - Samples that are ``made`` from others may be ill-conditioned. Their values may be eight times
      as far.
    """
    found = differences(eager, other)
    found = [
        line for line in found if not re.match(r"gradient \d+: eager None, bundle \[\]", line)
    ]  # of a tensor without elements
    if any(tensor.is_conj() for tensor in sample.tensors):
        found = [line for line in found if not line.startswith("out") or ".conj: " not in line]
    values = {path for line in found for path, differ, _ in [line.partition(": values differ")] if differ}
    if values and not sample.undefined:
        values = {path for path in values if compiled or made or _is_half(eager, path)}
        exact = observe(sample.function, sample.in_double()) if values else eager
        further = 8 if made else 2 if compiled else 1
        values = {
            path for path in values if _distance(other, exact, path) <= further * _distance(eager, exact, path) < float("inf")
        }
    return [line for line in found if line.partition(": values differ")[0] not in values]


def _value(seen: Observation, path: str) -> torch.Tensor | None:
    return seen.tensors[path].value if path in seen.tensors else seen.after.get(path)


def _is_half(seen: Observation, path: str) -> bool:
    value = _value(seen, path)
    return value is not None and value.dtype in (torch.bfloat16, torch.float16)


def _distance(seen: Observation, exact: Observation, path: str) -> float:
    """The largest difference from the exact values; infinite if there are none."""
    value, expected = _value(seen, path), _value(exact, path)
    if value is None or expected is None or exact.error is not None or value.shape != expected.shape:
        return float("inf")
    return float((value.double() - expected.double()).abs().max())


def one_line(error: BaseException) -> str:
    """An exception's type and text, without parts that change between runs."""
    text = " ".join(str(error).replace(f"{ROOT}/", "").split())
    text = re.sub(r" \[at scripts/devtools/conformance/samples\.py:\d+: [^]]*\]", "", text)
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    return f"{type(error).__name__}: {text[:600]}"
