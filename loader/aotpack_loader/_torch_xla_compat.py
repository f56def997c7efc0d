"""All APIs of torch_xla that the loader uses, most of them private.

Importing this module imports torch_xla. Only code for XLA devices imports it. Tried on: torch_xla
2.9.0, ``PJRT_DEVICE=CPU``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
import torch_xla
import torch_xla.core.xla_model as xla_model
from torch_xla import runtime
from torch_xla.core import xla_builder

_xla = torch_xla._XLAC

Placeholder = tuple[torch.dtype, Sequence[int]]
"""Element type and sizes of a tensor without data."""


def version() -> str:
    """The release of torch_xla."""
    return str(torch_xla.__version__)


def devices() -> list[torch.device]:
    """The XLA devices of this process. Creates the PJRT client."""
    return [torch.device(name) for name in xla_model.get_xla_supported_devices() or []]


def is_cpu() -> bool:
    """Whether the devices are XLA's own for the CPU. Their results are in this process's memory."""
    return bool(runtime.device_type() == "CPU")


def is_spmd() -> bool:
    """Whether torch_xla uses all devices as one, and partitions tensors and computations over them."""
    return bool(runtime.is_spmd())


def pending(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether any of these is not computed yet."""
    return any(_xla._check_tensor_need_materialization(list(tensors)))


def start_pending(device: torch.device) -> None:
    """Compile (once for each graph) and start all pending work of the device, without waiting for it."""
    _xla._xla_sync_live_tensors(str(device), [], False)


def next_seed(device: torch.device) -> torch.Tensor:
    """A seed as an int64 scalar on the device. Advances the device's random state as ``torch_xla.sync`` does."""
    seed: torch.Tensor = _xla._get_base_seed_as_tensor(str(device))
    # The same step as DeviceContextArena in torch_xla, and as its bridge to Dynamo
    # (_dynamo/dynamo_bridge.py).
    _xla._xla_set_rng_seed((1012031 + _xla._xla_get_rng_seed() * 7012063) % 2**64, str(device))
    return seed


class Computation:
    """An ``HloModuleProto``, compiled once at construction.

    Args:
        name: identifies the computation in torch_xla's cache, so it must contain the digest of
            ``hlo``.
        hlo: the serialised module.
        parameters: its parameters, in order.
        device: what to compile for.
        donated: indices of parameters whose memory the results may reuse. A call leaves those
            arguments without data.

    Attributes:
        results: dtype and sizes of each result.
    """

    def __init__(
        self, name: str, hlo: bytes, parameters: Sequence[Placeholder], device: torch.device, donated: Sequence[int] = ()
    ) -> None:
        self._device = device
        computation = xla_builder.computation_from_module_proto(name, hlo)
        with _default_device(device):
            inputs = [xla_builder.create_placeholder_tensor(list(shape), dtype) for dtype, shape in parameters]
            outputs = _xla._xla_user_computation(f"xla::{name}", inputs, computation)
        self.results: list[Placeholder] = [(output.dtype, tuple(output.shape)) for output in outputs]
        numbers = {_xla._xla_get_tensor_id(tensor): i for i, tensor in enumerate(inputs)}
        # torch_xla passes the parameters in an order of its own.
        order, _ = _xla._get_tensors_xla_device_data_node(outputs)
        self._order = [numbers[number] for number in order]
        for i in donated:
            _xla._set_buffer_donation(inputs[i], True)  # part of the hash; the module's own donations are ignored
        with _donation(enabled=bool(donated)):
            # Also registers the shapes of the results in the process. Without them, running a graph
            # by its hash fails.
            self._hash = _xla._get_graph_hash(outputs)
            _xla._xla_warm_up_cache(outputs, [])

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Start the computation. The results may be used before it has ended."""
        with _default_device(self._device):  # each thread has its own, and autograd's threads lack the caller's
            found: list[torch.Tensor] = _xla._run_cached_graph(self._hash, [arguments[i] for i in self._order])
        return found


class PartitionedComputation:
    """An ``HloModuleProto`` for :func:`is_spmd`.

    A call adds it to the device's pending work, which is compiled together.

    The sharding of the arguments decides how it is partitioned, and is known only at a call.
    Arguments and attributes are those of :class:`Computation`.
    """

    def __init__(self, name: str, hlo: bytes, parameters: Sequence[Placeholder], device: torch.device) -> None:
        self._name = f"xla::{name}"
        self._computation = xla_builder.computation_from_module_proto(name, hlo)
        with _default_device(device):
            outputs = self([xla_builder.create_placeholder_tensor(list(shape), dtype) for dtype, shape in parameters])
        self.results: list[Placeholder] = [(output.dtype, tuple(output.shape)) for output in outputs]

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results, which are not computed yet."""
        found: list[torch.Tensor] = _xla._xla_user_computation(self._name, list(arguments), self._computation)
        return found


def is_shared(tensors: Sequence[torch.Tensor], number: int) -> bool:
    """Whether another of these shares memory with the tensor at index ``number``.

    All must be computed or in progress.
    """
    handles = _xla._get_tensors_handle(list(tensors))
    return bool(handles.count(handles[number]) > 1)


@contextlib.contextmanager
def _donation(*, enabled: bool) -> Iterator[None]:
    before = _xla._xla_get_enable_alias_with_buffer_donor_config()
    _xla._xla_set_enable_alias_with_buffer_donor_config(enabled)
    try:
        yield
    finally:
        _xla._xla_set_enable_alias_with_buffer_donor_config(before)


@contextlib.contextmanager
def _default_device(device: torch.device) -> Iterator[None]:
    before = _xla._xla_get_default_device()
    _xla._xla_set_default_device(str(device))
    try:
        yield
    finally:
        _xla._xla_set_default_device(before)
