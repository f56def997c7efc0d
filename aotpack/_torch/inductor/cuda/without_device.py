"""Answers for a device what Inductor asks of it, so that a build needs none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
import torch._subclasses.fake_tensor
from torch._dynamo import device_interface
from torch._inductor.fx_passes import joint_graph, post_grad
from torch._inductor.runtime import hints, triton_helpers
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import cpp_extension
from torch.utils._triton import has_triton

from ...api.patching import constant, hooked, replaced, replaced_outside_torch
from .chips import COMMON_CC, common_properties
from .toolkit import include_folder

_ID = "inductor-cuda-without-device"


class _Driver:
    """Triton's driver for a device that is not there."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", COMMON_CC, 32)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def _without_guards(name: str, computed: Callable[..., Any]) -> Any:
    """A method of tensors that Python enters in the guard of a device, of which torch without CUDA has none.

    ``computed`` does the same for fake tensors of a GPU.
    """
    method: Callable[..., Any] = getattr(torch.Tensor, name)

    def called(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_there = isinstance(tensor, FakeTensor) and tensor.device.type == "cuda"
        return (computed if is_there else method)(tensor, *args, **kwargs)

    return hooked(_ID, torch.Tensor, name, called)


def _copied(into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    source.expand(into.shape)  # raises what the copy would
    return into


@contextlib.contextmanager
def without_device() -> Iterator[None]:
    """While active, Inductor generates code for a GPU with what all architectures have in common.

    ``torch.cuda.is_available()`` stays as it is, because fake tensors would start the device.
    """
    import triton.runtime

    properties = common_properties()
    caches: list[Any] = [hints.DeviceProperties.create, has_triton]
    interface = device_interface.CudaInterface
    answers: list[tuple[Any, str, Any]] = [
        (torch.cuda, "get_device_capability", (COMMON_CC // 10, COMMON_CC % 10)),
        (torch.cuda, "mem_get_info", (1 << 35, 1 << 36)),
        (torch.cuda, "_lazy_init", None),
        (torch._subclasses.fake_tensor, "init_gpu_context", None),
        (triton_helpers, "set_driver_to_gpu", None),
        (CachingAutotuner, "precompile", None),
        (joint_graph, "lazy_init", None),  # patterns, which are turned off: they are traced on the device
        (post_grad, "lazy_init", None),
        (interface, "get_compute_capability", COMMON_CC),
        (interface, "is_available", True),
        (interface, "exchange_device", 0),
        (interface, "maybe_exchange_device", 0),
        (interface, "get_raw_stream", 0),
    ]
    common = {"get_device_properties": properties, "current_device": 0, "device_count": 1}
    common |= {"synchronize": None, "is_bf16_supported": True}
    answers += [(owner, name, value) for owner in (torch.cuda, interface) for name, value in common.items()]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_guards("__invert__", torch.bitwise_not))
        stack.enter_context(_without_guards("copy_", _copied))
        stack.callback(lambda: [cache.cache_clear() for cache in caches])
        for owner, name, value in answers:
            replace = hooked if isinstance(owner, ModuleType) else replaced
            stack.enter_context(replace(_ID, owner, name, _answer(value)))
        stack.enter_context(constant(_ID, cpp_extension, "CUDA_HOME", str(include_folder().parent)))
        stack.enter_context(replaced_outside_torch(triton.runtime.driver, "_active", _Driver()))
        for cache in caches:
            cache.cache_clear()
        yield


def _answer(value: Any) -> Any:
    return lambda *args, **kwargs: value
