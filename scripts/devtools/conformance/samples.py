"""The samples of a sweep: inputs from torch's operator databases, each as a function over tensors alone.

torch has databases of operators with sample inputs for its own tests: ``op_db``, ``hop_db`` for
control flow, and ``custom_op_db`` for custom operators. Arguments that are not tensors (numbers,
types, slices, functions) become part of the function.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

DATABASES = ("op_db", "hop_db", "custom_op_db")
DTYPES = ("float32", "float64", "complex64", "bfloat16", "int64", "bool")
TARGETS = ("portable", "cpu")
UNDEFINED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators whose results are whatever the memory held."""
UNCHECKED = frozenset(
    {
        "_native_batch_norm_legit",
        "_segment_reduce",
        "_unsafe_masked_index",
        "_unsafe_masked_index_put_accumulate",
        "lu_unpack",
        "native_batch_norm",
        "nn.functional.embedding_bag",
        "nn.functional.max_pool3d",
        "nn.functional.pdist",
        "repeat_interleave",
    }
)
"""Operators whose own kernels end the process, in eager, at sizes that they do not look at."""


@dataclass(frozen=True)
class Unit:
    """A unit of work with one time limit: samples of an operator in one type, with static or dynamic sizes."""

    database: str
    operator: str
    dtype: str
    dynamic: bool
    target: str

    def __str__(self) -> str:
        words = [self.database, self.operator, self.dtype, "dynamic" if self.dynamic else "static"]
        return "/".join(words + ([self.target] if self.target != TARGETS[0] else []))


@dataclass(frozen=True)
class Sample:
    """A function over tensors, and its arguments.

    Args:
        name: index in the database; ``in-place`` for the operator's in-place variant.
        function: takes ``tensors`` positionally.
        tensors: leaves. :func:`twins` keeps how they share storage.
        differentiated: selects the results that get a gradient. The database knows which parts of a
            decomposition are unique.
        written: indices of the tensors that are written to. They are passed as results of earlier
            computation.
        undefined: whether the values of the results are undefined.
        fixed: whether it must not be called with other sizes.
        signature: equal for samples that differ only in sizes and values of their tensors.
    """

    name: str
    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    differentiated: Callable[[Any], Any]
    written: frozenset[int]
    undefined: bool
    fixed: bool
    signature: str

    @property
    def in_place(self) -> bool:
        return bool(self.written)

    def without_gradients(self) -> Sample:
        """The same sample with tensors that do not require grad."""
        return replace(self, tensors=tuple(tensor.detach() for tensor in self.tensors))

    def in_double(self) -> Sample:
        """The same sample in float64, if its type is less precise."""
        tensors = [t.detach().double() if t.dtype.is_floating_point else t.detach() for t in self.tensors]
        return replace(self, tensors=tuple(t.requires_grad_(u.requires_grad) for t, u in zip(tensors, self.tensors, strict=True)))

    @property
    def requires_grad(self) -> bool:
        return any(tensor.requires_grad for tensor in self.tensors)

    @property
    def sizes(self) -> list[torch.Size]:
        return [tensor.shape for tensor in self.tensors]


@functools.cache
def database(name: str) -> dict[str, Any]:
    """A database's entries by full name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "op_db":
            from torch.testing._internal import common_methods_invocations

            # Random operators set the seed around themselves in Python, which no graph records.
            # Each call is seeded instead.
            common_methods_invocations.wrapper_set_seed = lambda operator, *args, **kwargs: operator(*args, **kwargs)
            entries = common_methods_invocations.op_db
        elif name == "hop_db":
            from torch.testing._internal.hop_db import hop_db as entries
        else:
            from torch.testing._internal.custom_op_db import custom_op_db as entries
    return {".".join(filter(None, (entry.name, entry.variant_test_name))): entry for entry in entries}


def units(
    databases: Sequence[str],
    dtypes: Sequence[str],
    dynamic: Sequence[bool],
    operators: Sequence[str] = (),
    target: str = TARGETS[0],
) -> list[Unit]:
    """All units: each operator in each type its entry lists for the CPU, in integers only if it accepts no others."""
    found = []
    for name in databases:
        for operator, entry in database(name).items():
            if operators and operator not in operators and entry.name not in operators:
                continue
            listed = [str(dtype).removeprefix("torch.") for dtype in entry.supported_dtypes("cpu")]
            real = [dtype for dtype in DTYPES[:4] if dtype in listed]
            able = real or [dtype for dtype in DTYPES[4:] if dtype in listed][:1]
            chosen = [dtype for dtype in able if dtype in dtypes or not real]
            found += [Unit(name, operator, dtype, flag, target) for flag in dynamic for dtype in chosen]
    return sorted(found, key=lambda unit: (databases.index(unit.database), unit.dynamic))  # units that may share bundles


def samples(unit: Unit) -> Iterator[Sample]:
    """The samples of a unit, the same every time."""
    entry = database(unit.database)[unit.operator]
    dtype = getattr(torch, unit.dtype)
    gradients = entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    for number, sample in enumerate(entry.sample_inputs("cpu", dtype, requires_grad=gradients)):
        yield _sample(str(number), entry, entry.op, sample, in_place=False)
        inplace = entry.inplace_variant
        if inplace is not None and isinstance(sample.input, torch.Tensor) and not sample.broadcasts_input:
            yield _sample(f"{number} in-place", entry, inplace, sample, in_place=True)


def _sample(name: str, entry: Any, operator: Callable[..., Any], sample: Any, *, in_place: bool) -> Sample:
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    positions = [i for i, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        given = dict(zip(positions, tensors, strict=True))
        first, args, kwargs = pytree.tree_unflatten([given.get(i, leaf) for i, leaf in enumerate(flat)], spec)
        return operator(first, *args, **kwargs)

    tensors = tuple(flat[i].detach().requires_grad_(flat[i].requires_grad) for i in positions)
    others = {i: repr(leaf) for i, leaf in enumerate(flat) if i not in positions}
    kinds = [(tensor.dtype, tensor.dim(), tensor.requires_grad, tensor.is_conj(), layout(tensor)) for tensor in tensors]
    return Sample(
        name,
        function,
        tensors,
        sample.output_process_fn_grad,
        frozenset({0}) if in_place else frozenset(),
        entry.name in UNDEFINED,
        entry.name in UNCHECKED,
        f"{in_place} {spec} {others} {kinds}",
    )


def together(samples: Sequence[Sample]) -> Sample:
    """Several samples as one, which returns their results in a list. Samples do not share memory with each other."""
    if len(samples) == 1:
        return samples[0]
    tensors = [twins(sample.tensors) for sample in samples]
    first = [sum(map(len, tensors[:i])) for i in range(len(samples))]

    def function(*given: torch.Tensor) -> list[Any]:
        return [sample.function(*given[i : i + len(sample.tensors)]) for i, sample in zip(first, samples, strict=True)]

    def differentiated(results: list[Any]) -> list[Any]:
        return [sample.differentiated(result) for sample, result in zip(samples, results, strict=True)]

    return Sample(
        " + ".join(sample.name for sample in samples),
        function,
        tuple(tensor for own in tensors for tensor in own),
        # The database's function for whole results is recognised by its module. A new process needs
        # no other.
        samples[0].differentiated if all(map(is_whole, samples)) else differentiated,
        frozenset(i + position for i, sample in zip(first, samples, strict=True) for position in sample.written),
        any(sample.undefined for sample in samples),
        any(sample.fixed for sample in samples),
        f"{[sample.signature for sample in samples]}",
    )


def is_whole(sample: Sample) -> bool:
    """Whether the whole result gets gradients."""
    return sample.differentiated.__module__ == "torch.testing._internal.opinfo.core"  # the module of the default


def layout(tensor: torch.Tensor) -> object:
    """The order of the dimensions in memory, or the strides of a tensor with gaps.

    A bundle's results have the layout of its example.
    """
    if tensor.layout != torch.strided:
        return tensor.layout
    order = sorted(range(tensor.dim()), key=lambda dimension: -tensor.stride(dimension))
    return order if tensor.permute(order).is_contiguous() else tensor.stride()


def twins(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same strides, which share storage as the originals do."""
    storages: dict[int, torch.UntypedStorage] = {}

    def twin(tensor: torch.Tensor) -> torch.Tensor:
        value = tensor.detach()
        if value.layout != torch.strided:
            return value.clone()
        if value.is_conj():
            return twin(value.conj()).conj()
        if value.is_neg():
            return torch._neg_view(twin(torch._neg_view(value)))
        storage = value.untyped_storage()
        copy = storages.setdefault(storage._cdata, storage.clone())
        return torch.empty(0, dtype=value.dtype).set_(copy, value.storage_offset(), value.size(), value.stride())

    return [twin(tensor).detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
