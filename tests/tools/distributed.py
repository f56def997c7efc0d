"""What a process of ``test_distributed`` does: trains in each wrapper and writes down its losses, or the error."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import aotpack_loader

STEPS = 4  # the third is the first that PowerSGD compresses, and the fourth loss shows it
CPU = torch.device("cpu")
_BF16 = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
Wrap = Callable[[nn.Module], Any]


def _with_hook(state: Callable[[], Any], hook: Any) -> Wrap:
    """DDP with a communication hook, and a state of its own."""

    def wrap(model: nn.Module) -> DistributedDataParallel:
        wrapped = DistributedDataParallel(model)
        wrapped.register_comm_hook(state(), hook)
        return wrapped

    return wrap


def _power_sgd_state() -> powerSGD_hook.PowerSGDState:
    """Compresses the weight alone. What it draws for several parameters depends on the order of their gradients."""
    return powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)


WRAPS: dict[str, Wrap] = {
    "ddp": DistributedDataParallel,
    "ddp static_graph": lambda model: DistributedDataParallel(model, static_graph=True),
    "ddp find_unused_parameters": lambda model: DistributedDataParallel(model, find_unused_parameters=True),
    "ddp gradient_as_bucket_view": lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True),
    "ddp powerSGD": _with_hook(_power_sgd_state, powerSGD_hook.powerSGD_hook),
    "ddp half gradients": _with_hook(lambda: None, default_hooks.fp16_compress_hook),
    "fsdp1": lambda model: FullyShardedDataParallel(model, device_id=CPU),
    "fsdp1 use_orig_params": lambda model: FullyShardedDataParallel(model, device_id=CPU, use_orig_params=True),
    "fsdp2": lambda model: fully_shard(model, reshard_after_forward=True),
    "fsdp2 no reshard": lambda model: fully_shard(model, reshard_after_forward=False),
    "fsdp1 bf16": lambda model: FullyShardedDataParallel(model.float(), device_id=CPU, mixed_precision=MixedPrecision(**_BF16)),
    "fsdp2 bf16": lambda model: fully_shard(model.float(), mp_policy=MixedPrecisionPolicy(**_BF16)),
    "accelerate": lambda model: accelerate.Accelerator(cpu=True).prepare(model),
    "refused: half precision": lambda model: fully_shard(model, mp_policy=MixedPrecisionPolicy(**_BF16)),
    "refused: fully_shard of a part": lambda model: fully_shard(model.linear) and fully_shard(model),
    "refused: fsdp1 with a policy": lambda model: FullyShardedDataParallel(
        model, device_id=CPU, auto_wrap_policy=ModuleWrapPolicy({nn.Linear})
    ),
    "refused: tensor parallel": lambda model: parallelize_module(
        model, init_device_mesh("cpu", (2,)), {"linear": ColwiseParallel()}
    ),
}


def train(model: nn.Module, wrap: Wrap, rank: int) -> list[float] | str:
    """The losses, or the error."""
    generator = torch.Generator().manual_seed(rank)
    losses = []
    try:
        wrapped = wrap(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
        for _ in range(STEPS):
            loss = wrapped(torch.randn(2, 3, generator=generator)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return losses


def work(rank: int, folder: str, port: int, paths: dict[str, str]) -> None:
    """Train eager and bundle in every wrapper, for each bundle."""
    from .test_records import Model

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", ACCELERATE_USE_CPU="1")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for kind, path in paths.items():
        kind, _, dtype = kind.partition(" ")
        for name, wrap in WRAPS.items():
            if ("bf16" in name) != bool(dtype):
                continue
            bundle, eager = aotpack_loader.load(path), Model(kind)
            if dtype:
                bundle = bundle.float()
            eager.load_state_dict(bundle.state_dict())
            found[f"{kind}, {name}"] = [train(eager, wrap, rank), train(bundle, wrap, rank)]
            dist.barrier()
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()
