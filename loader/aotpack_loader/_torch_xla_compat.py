"""Every API of torch_xla that the loader touches, most of them private, and nothing else.

Importing this module imports torch_xla: only what runs on an XLA device does. Tried on: torch_xla 2.9.0, ``PJRT_DEVICE=CPU``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
import torch_xla
import torch_xla.core.xla_model as xla_model
from torch_xla import runtime
from torch_xla.core import xla_builder

TRIED_ON = ("2.9.0",)

_xla = torch_xla._XLAC

Placeholder = tuple[torch.dtype, Sequence[int]]
"""Element type and sizes of a tensor without data."""


def version() -> str:
    """The release of torch_xla."""
    return str(torch_xla.__version__)


def devices() -> list[torch.device]:
    """The XLA devices of this process; makes the PJRT client."""
    return [torch.device(name) for name in xla_model.get_xla_supported_devices() or []]


def is_cpu() -> bool:
    """Whether the devices are XLA's own for the CPU: what they compute is in memory of this process."""
    return bool(runtime.device_type() == "CPU")


def is_spmd() -> bool:
    """Whether torch_xla takes all devices for one, over which it partitions tensors and what is computed of them."""
    return bool(runtime.is_spmd())


def pending(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether any of these is still to be computed."""
    return any(_xla._check_tensor_need_materialization(list(tensors)))


def start_pending(device: torch.device) -> None:
    """Compile (once for each graph) and start whatever is still to be computed on the device; does not wait for it."""
    _xla._xla_sync_live_tensors(str(device), [], False)


def next_seed(device: torch.device) -> torch.Tensor:
    """A seed as an int64 scalar on the device; the device's random state moves on, as ``torch_xla.sync`` moves it."""
    seed: torch.Tensor = _xla._get_base_seed_as_tensor(str(device))
    # The step of DeviceContextArena in torch_xla; torch_xla's own bridge to Dynamo takes it too (_dynamo/dynamo_bridge.py).
    _xla._xla_set_rng_seed((1012031 + _xla._xla_get_rng_seed() * 7012063) % 2**64, str(device))
    return seed


class Computation:
    """An ``HloModuleProto``, compiled once when this is made.

    Args:
        name: tells computations apart in torch_xla's cache: the digest of ``hlo`` must be part of it.
        hlo: the serialised module.
        parameters: its parameters, in order.
        device: what to compile for.
        donated: positions of parameters whose memory the results may take: a call then leaves those arguments without data.

    Attributes:
        results: element type and sizes of what it returns.
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
        # What torch_xla runs takes its parameters in an order of its own.
        order, _ = _xla._get_tensors_xla_device_data_node(outputs)
        self._order = [numbers[number] for number in order]
        for i in donated:
            _xla._set_buffer_donation(inputs[i], True)  # part of the hash; what the module itself says of donation is ignored
        with _donation(enabled=bool(donated)):
            # Also tells the process the shapes of the results, without which running a graph by its hash fails.
            self._hash = _xla._get_graph_hash(outputs)
            _xla._xla_warm_up_cache(outputs, [])

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Start the computation; the results may be used before it has ended."""
        with _default_device(self._device):  # where it runs; each thread has its own, and autograd's have not the caller's
            found: list[torch.Tensor] = _xla._run_cached_graph(self._hash, [arguments[i] for i in self._order])
        return found


class PartitionedComputation:
    """An ``HloModuleProto`` for :func:`is_spmd`: a call joins it to what waits on the device, and is compiled with that.

    Its arguments' sharding decides how it is partitioned, which is not known before. Arguments and attributes as above.
    """

    def __init__(self, name: str, hlo: bytes, parameters: Sequence[Placeholder], device: torch.device) -> None:
        self._name = f"xla::{name}"
        self._computation = xla_builder.computation_from_module_proto(name, hlo)
        with _default_device(device):
            outputs = self([xla_builder.create_placeholder_tensor(list(shape), dtype) for dtype, shape in parameters])
        self.results: list[Placeholder] = [(output.dtype, tuple(output.shape)) for output in outputs]

    def __call__(self, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results, which are still to be computed."""
        found: list[torch.Tensor] = _xla._xla_user_computation(self._name, list(arguments), self._computation)
        return found


def is_shared(tensors: Sequence[torch.Tensor], number: int) -> bool:
    """Whether one of these is in the same memory as the one with this number; all of them are there or being computed."""
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
