"""Wraps all APIs of torch_xla that the compiler uses, most of them private.

Importing this module imports torch_xla, which creates its client at the first tensor. Unless
``PJRT_DEVICE`` is set, that is a client for the CPU, since lowering runs nothing. Tried on:
torch_xla 2.9.0.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

os.environ.setdefault("PJRT_DEVICE", "CPU")

import torch_xla
from torch_xla.core import xla_builder as xla_builder

_xla = torch_xla._XLAC
_DEVICE = "xla:0"
_KERNELS = ("XLA", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")


class FallbackError(Exception):
    """torch_xla computes an operator on the CPU, so it cannot be lowered."""


class Module(NamedTuple):
    """A program in both forms.

    ``order``: the indices of the input tensors that it uses, in the order of its parameters.
    """

    hlo: bytes
    stablehlo: bytes
    order: list[int]


def fingerprint() -> dict[str, str]:
    """The releases that decide what a graph is lowered to."""
    return {"torch": str(torch.__version__), "torch_xla": str(torch_xla.__version__), "xla": _xla._get_git_revs()["xla"]}


def has_kernel(operator: torch._ops.OpOverload) -> bool:
    """Whether torch_xla has a kernel or torch can decompose the operator; otherwise it runs on the
    CPU, and needs data.
    """
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key) for key in _KERNELS)


def placeholder(like: torch.Tensor) -> torch.Tensor:
    """A tensor on the XLA device without data: operators on it are recorded."""
    tensor: torch.Tensor = xla_builder.create_placeholder_tensor(list(like.shape), like.dtype)
    return tensor


def seed() -> torch.Tensor:
    """A new int64 scalar from which the operators called next draw their random numbers."""
    tensor: torch.Tensor = _xla._get_base_seed_as_tensor(_DEVICE)
    return tensor


SEED_FACTOR, SEED_STEP = 0x5851F42D4C957F2D, 0x9E3779B97F4A7C1
"""Derive seeds of calls or turns from one seed: seed * factor + step * number, modulo 2**64.

The factor is Knuth's (MMIX).

Without the factor, turn 1 of call 2 would draw the same numbers as turn 2 of call 1.
"""


def derived_seed(seed: torch.Tensor, number: int) -> torch.Tensor:
    """The seed of the call with this number, derived from the seed of all calls."""
    added = SEED_STEP * number % 2**64
    return seed * SEED_FACTOR + (added - 2**64 if added >= 2**63 else added)


def barrier(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values behind a barrier: XLA computes nothing that depends on one of them before all
    are available.
    """
    held = [value.clone() for value in values]
    _xla._xla_optimization_barrier_(held)
    return held


def device() -> torch.device:
    """The device of placeholders."""
    return torch.device(_DEVICE)


def make_device() -> None:
    """Create torch_xla's devices before the first backward of the process, which makes one queue
    for each existing device.

    A trace runs a backward; if the devices came later, no bundle could be loaded.

    Raises:
        RuntimeError: there is no device of the kind that ``PJRT_DEVICE`` names.
    """
    torch_xla.device()


@contextlib.contextmanager
def staging() -> Iterator[None]:
    """Record operators on placeholders: numbers become constants, and operators that would read
    data are rejected.

    Raises:
        FallbackError: an operator would have read data.
    """
    make_device()
    before = _xla._get_xla_all_numbers_special_scalars()
    _xla._set_xla_all_numbers_special_scalars(True)
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that these kernels are replaced
            for name in ("_to_cpu", "_local_scalar_dense", "_copy_from"):
                library.impl(name, _refusal(name), "XLA", allow_override=True)
        yield
    finally:
        library._destroy()
        _xla._set_xla_all_numbers_special_scalars(before)


def _refusal(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise FallbackError(f"it would read data ({name})")

    return refuse


def lower(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Module:
    """The program that computes ``outputs`` from ``inputs``, which are placeholders and seeds.

    Raises:
        FallbackError: it depends on another tensor, which torch_xla made on the device.
    """
    context = _xla.lowering.LoweringContext("aotpack")
    context.build(list(outputs))
    stablehlo = _xla._get_stablehlo(list(outputs), _DEVICE, [], True)
    arguments_by_id = {context.tensor_parameter_id(tensor): i for i, tensor in enumerate(inputs)}
    arguments_by_id.pop(-1, None)  # inputs that no output depends on
    if len(arguments_by_id) != len(context.device_parameter_id_tensor_mapping()):
        raise FallbackError("torch_xla keeps a number as a tensor on the device")
    return Module(context.hlo(), stablehlo, [arguments_by_id[number] for number in sorted(arguments_by_id)])


def depends_on_others(values: object, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether ``values``, a tensor or several, depend on a device tensor that is not among
    ``tensors``.
    """
    found = [value for value in (values if isinstance(values, (tuple, list)) else [values]) if isinstance(value, torch.Tensor)]
    numbers, _ = _xla._get_tensors_xla_device_data_node(found)
    return not {_xla._xla_get_tensor_id(tensor) for tensor in tensors}.issuperset(numbers)


def call(hlo: bytes, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Record a call of a program and return its results; their types are those that a loader sees."""
    return call_computation(xla_builder.computation_from_module_proto("aotpack", hlo), arguments)


def call_computation(computation: Any, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Record a call of a computation of torch_xla's builder and return its results."""
    found: list[torch.Tensor] = _xla._xla_user_computation("xla::aotpack", list(arguments), computation)
    return found
