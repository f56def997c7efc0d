"""Two processes: DDP, FSDP and tensor parallelism around a loaded bundle whose results are records."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from torch import multiprocessing

import aotpack

from .distributed import STEPS, work
from .test_records import Model


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[float] | str]]:
    """For each wrapper what eager and what the bundle made of it, in the first process."""
    folder = tmp_path_factory.mktemp("distributed")
    paths = {}
    torch.manual_seed(0)
    for kind, dtype in (("named_tuple", torch.float32), ("unregistered", torch.float32), ("named_tuple", torch.bfloat16)):
        name = kind if dtype is torch.float32 else f"{kind} bf16"
        paths[name] = str(folder / f"{name}.aotpack")
        model, x = Model(kind).to(dtype), torch.randn(2, 3, dtype=dtype)
        aotpack.build(model, (x,), out=paths[name], targets=("portable",), methods=("train",))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(work, args=(str(folder), port, paths), nprocs=2)  # type: ignore[no-untyped-call]
    first: dict[str, list[list[float] | str]] = json.loads(Path(folder, "0.json").read_text(encoding="utf-8"))
    return first


def test_losses_are_those_of_eager(found: dict[str, list[list[float] | str]]) -> None:
    wrong = []
    for name, (eager, bundle) in found.items():
        if "refused" in name:
            continue
        assert len(eager) == STEPS, (name, eager)
        if isinstance(bundle, str) or bundle != pytest.approx(eager, rel=1e-2 if "bf16" in name else 1e-5):
            wrong.append((name, eager, bundle))
    assert wrong == []
    assert len(found) == 2 * 15 + 2


@pytest.mark.parametrize("way", ["tensor parallel", "fully_shard of a part", "fsdp1 with a policy"])
def test_what_splits_a_bundle_is_refused(found: dict[str, list[list[float] | str]], way: str) -> None:
    for kind in ("named_tuple", "unregistered"):
        _, message = found[f"{kind}, refused: {way}"]
        assert isinstance(message, str), message
        assert "linear" in message
        assert "fully_shard" in message


def test_power_sgd_compresses_here(found: dict[str, list[list[float] | str]]) -> None:
    for kind in ("named_tuple", "unregistered"):
        whole, compressed = (found[f"{kind}, {way}"][0] for way in ("ddp", "ddp powerSGD"))
        assert compressed[:3] == whole[:3]
        assert compressed[3] != whole[3]


def test_a_policy_of_half_precision_needs_a_bundle_in_it(found: dict[str, list[list[float] | str]]) -> None:
    for kind in ("named_tuple", "unregistered"):
        _, message = found[f"{kind}, refused: half precision"]
        assert isinstance(message, str), message
        assert "linear.weight: expected torch.float32, got torch.bfloat16" in message
        assert "works with a bundle built in that type" in message
