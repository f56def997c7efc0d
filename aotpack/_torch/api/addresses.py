"""Where tensors are in memory."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor


def storage_address(tensor: torch.Tensor) -> int:
    """Address of a tensor's storage; 0 for fake and sparse tensors, and for subclasses that hold others.

    On XLA devices that of the storage object.
    """
    if isinstance(tensor, FakeTensor) or hasattr(tensor, "__tensor_flatten__") or tensor.layout != torch.strided:
        return 0
    storage = tensor.untyped_storage()
    return storage._cdata if tensor.device.type == "xla" else storage.data_ptr()
