"""Several processes, and several devices of one: all of them the CPU's, so what hardware does is not shown."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import FreshProcess

from . import models
from .test_train import build

STEPS = 4

Trained = tuple[list[float], dict[str, torch.Tensor]]

TRAIN = f"""
STEPS = {STEPS}

import json, sys
import torch
import torch_xla
import torch_xla.runtime as runtime

def train(model, args, after_backward=lambda optimizer: None, model_called=None):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model_called or model)(*args)
        loss.backward()
        after_backward(optimizer)
        optimizer.step()
        losses.append(loss.item())
    return losses

def state(model):
    return {{name: value.double().cpu().tolist() for name, value in model.state_dict().items()}}
"""


def run(fresh_process: FreshProcess, code: str, *arguments: object, **environment: str) -> dict[str, object]:
    """``code`` after :data:`TRAIN`, in a process of its own that must end within minutes."""
    return fresh_process(TRAIN + code, *arguments, **environment)  # type: ignore[no-any-return]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path]:
    """A bundle of a model with BatchNorm, and its arguments."""
    model, args = models.cnn()
    torch.save(args, tmp_path / "args.pt")
    return build(model, args, tmp_path / "model.aotpack"), tmp_path / "args.pt"


def eager(make: Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]] = models.cnn) -> Trained:
    """Losses and the state after as many steps on the CPU, on the whole batch."""
    model, args = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(*args)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def check(found: dict[str, object], losses: list[float], state: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(found["losses"], losses, rtol=1e-5, atol=1e-5)
    assert isinstance(found["state"], dict)
    assert found["state"].keys() == state.keys()
    for name, value in state.items():
        torch.testing.assert_close(torch.tensor(found["state"][name]), value.float(), check_dtype=False, rtol=1e-4, atol=1e-5)


TWO_PROCESSES = """
import datetime, os
import torch.distributed as dist
from aotpack_loader import load

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # gloo prints
path, args, meeting, rank = *sys.argv[1:4], int(sys.argv[4])
dist.init_process_group(
    "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=120)
)
model = load(path, device="xla")
half = [arg.chunk(2)[rank].to("xla") for arg in torch.load(args)]

def average(optimizer):
    for parameter in model.parameters():
        gradient = parameter.grad.cpu()
        dist.all_reduce(gradient)
        parameter.grad.copy_(gradient / 2)

losses = train(model, half, average)
dist.destroy_process_group()
print(json.dumps({"losses": losses, "state": state(model)}), file=answers, flush=True)
"""


def test_two_processes_are_one_on_the_whole_batch(tmp_path: Path, fresh_process: FreshProcess) -> None:
    """Each loads the bundle, for half of the batch; the gradients are averaged between the backward and the step."""
    model, args = models.mlp()
    half = tuple(arg[:4] for arg in args)
    torch.save(args, tmp_path / "args.pt")
    path = build(model, half, tmp_path / "model.aotpack")
    with ThreadPoolExecutor(2) as pool:
        tasks = [
            pool.submit(
                run, fresh_process, TWO_PROCESSES, path, tmp_path / "args.pt", tmp_path / "meeting", rank, GLOO_SOCKET_IFNAME="lo"
            )
            for rank in range(2)
        ]
        first, second = [task.result() for task in tasks]
    assert first["state"] == second["state"]
    assert first["losses"] != second["losses"]
    mean = [(a + b) / 2 for a, b in zip(first["losses"], second["losses"], strict=True)]  # type: ignore[call-overload]
    check({**first, "losses": mean}, *eager(models.mlp))


SPMD = """
import numpy
import torch_xla.distributed.spmd as spmd
from torch_xla.debug import metrics

runtime.use_spmd()
from aotpack_loader import load

model = load(sys.argv[1], device="xla")
devices = runtime.global_runtime_device_count()
x, labels = (arg.to("xla") for arg in torch.load(sys.argv[2]))
mesh = spmd.Mesh(numpy.arange(devices), (devices,), ("data",))
spmd.mark_sharding(x, mesh, ("data", None, None, None))
spmd.mark_sharding(labels, mesh, ("data",))
counts = []
losses = train(model, (x, labels), lambda optimizer: counts.append(metrics.counter_value("UncachedCompile")))
sharding = torch_xla._XLAC._get_xla_sharding_spec(x)
print(json.dumps({"losses": losses, "state": state(model), "devices": devices, "counts": counts, "sharding": sharding}))
"""


def test_spmd_partitions_over_two_devices(saved: tuple[Path, Path], fresh_process: FreshProcess) -> None:
    """The batch is in two halves, and all the rest follows: BatchNorm sees the whole batch, gradients are summed."""
    found = run(fresh_process, SPMD, *saved, CPU_NUM_DEVICES="2")
    assert (found["devices"], found["sharding"]) == (2, "{devices=[2,1,1,1]0,1}")
    counts = found["counts"]
    assert isinstance(counts, list)
    assert counts[2:] == [counts[2]] * (STEPS - 2)
    check(found, *eager())


SHARDED_PARAMETERS = """
import numpy
import torch_xla.distributed.spmd as spmd

runtime.use_spmd()
from aotpack_loader import load

model = load(sys.argv[1], device="xla")
args = [arg.to("xla") for arg in torch.load(sys.argv[2])]
mesh = spmd.Mesh(numpy.arange(4), (2, 2), ("data", "model"))
for arg in args:
    spmd.mark_sharding(arg, mesh, ("data", *[None] * (arg.dim() - 1)))
sides = {"first.weight": ("model", None), "first.bias": ("model",), "second.weight": (None, "model")}
for name, parameter in model.named_parameters():
    if name in sides:
        spmd.mark_sharding(parameter, mesh, sides[name])
losses = train(model, args)
xla = torch_xla._XLAC
shards = {}
for name, parameter in model.named_parameters():
    (parts,) = xla._get_local_shards([parameter])
    shards[name] = [list(part.shape) for part, _ in parts]
print(json.dumps({"losses": losses, "state": state(model), "shards": shards}))
"""


def test_spmd_partitions_parameters(tmp_path: Path, fresh_process: FreshProcess) -> None:
    """Four devices, two by two: halves of the batch along one side; along the other the first layer by what it gives, the second
    by what it takes. They stay so after the optimizer's steps, and all is as on one device.
    """
    model, args = models.mlp()
    torch.save(args, tmp_path / "args.pt")
    path = build(model, args, tmp_path / "model.aotpack")
    found = run(fresh_process, SHARDED_PARAMETERS, path, tmp_path / "args.pt", CPU_NUM_DEVICES="4")
    assert found["shards"] == {
        "first.weight": [[16, 16]] * 4,
        "first.bias": [[16]] * 4,
        "second.weight": [[10, 16]] * 4,
        "second.bias": [[10]] * 4,
    }
    check(found, *eager(models.mlp))


DROPOUT = """
import numpy
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as spmd

runtime.use_spmd()
from aotpack_loader import load

model = load(sys.argv[1], device="xla")
mesh = spmd.Mesh(numpy.arange(2), (2,), ("data",))
found = []
for seed in (3, None, 3):
    if seed is not None:
        xm.set_rng_state(seed)
    x = torch.ones(64, 256).to("xla").requires_grad_()
    spmd.mark_sharding(x, mesh, ("data", None))
    y = model(x)
    y.sum().backward()
    found.append([y.detach().cpu().tolist(), x.grad.cpu().tolist()])
print(json.dumps(found))
"""


def test_dropout_under_spmd(tmp_path: Path, fresh_process: FreshProcess) -> None:
    """Neither half of the batch has the other's mask, nor the next call this one's; the backward's is the forward's."""
    path = build(torch.nn.Dropout(0.25), (torch.ones(64, 256, requires_grad=True),), tmp_path / "model.aotpack")
    runs = [torch.tensor(item) for item in run(fresh_process, DROPOUT, path, CPU_NUM_DEVICES="2")]
    for forward, backward in runs:
        assert torch.equal(forward, backward)
        torch.testing.assert_close(forward.unique(), torch.tensor([0, 4 / 3]))
        assert abs((forward != 0).float().mean().item() - 0.75) < 0.017  # five standard deviations
    masks = [mask for forward, _ in runs[:2] for mask in (forward != 0).chunk(2)]
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert abs((one == other).float().mean().item() - 0.625) < 0.03
    assert torch.equal(runs[0], runs[2])


SPMD_REFUSED = """
import warnings
from aotpack_loader import load
from aotpack_loader.errors import TargetError

model = load(sys.argv[1], device="xla")
args = [arg.to("xla") for arg in torch.load(sys.argv[2])]
warnings.simplefilter("ignore")  # torch_xla's own
runtime.use_spmd()
found = []
for attempt in (lambda: model(*args), lambda: load(sys.argv[1], device="xla", donate=True)):
    try:
        attempt()
    except TargetError as error:
        found.append(str(error))
print(json.dumps(found))
"""


def test_spmd_after_load_and_donation_are_refused(saved: tuple[Path, Path], fresh_process: FreshProcess) -> None:
    """torch_xla itself crashes the process that then runs what was compiled before."""
    late, donated = run(fresh_process, SPMD_REFUSED, *saved)
    assert late == (
        "torch_xla's SPMD mode was turned on after this bundle was loaded.\n"
        "Call torch_xla.runtime.use_spmd() first, then load the bundle."
    )
    assert donated == "donate=True: under SPMD buffers are not updated in place.\nLoad without it."


TWO_DEVICES = """
from aotpack_loader import load

found = []
for device in ("xla:0", "xla:1"):
    model = load(sys.argv[1], device=device)
    args = [arg.to(device) for arg in torch.load(sys.argv[2])]
    found.append({"losses": train(model, args), "state": state(model), "device": str(next(model.parameters()).grad.device)})
print(json.dumps(found))
"""


def test_two_devices_of_one_process(saved: tuple[Path, Path], fresh_process: FreshProcess) -> None:
    """Each runs on its own device, whichever is torch_xla's current one: the backward too, in autograd's thread."""
    found = run(fresh_process, TWO_DEVICES, *saved, CPU_NUM_DEVICES="2")
    expected = eager()
    for i, each in enumerate(found):
        assert each["device"] == f"xla:{i}"  # type: ignore[index]
        check(each, *expected)  # type: ignore[arg-type]


ONE_OF_ONE = """
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
from torch.nn.parallel import DistributedDataParallel
from aotpack_loader import load

args = [arg.to("xla") for arg in torch.load(sys.argv[2])]
reduced = load(sys.argv[1], device="xla")
found = {"reduced": {"losses": train(reduced, args, xm.reduce_gradients), "state": state(reduced)}}
dist.init_process_group("xla", init_method="xla://")
model = load(sys.argv[1], device="xla")
wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
found["ddp"] = {"losses": train(model, args, model_called=wrapped), "state": state(model)}
dist.destroy_process_group()
print(json.dumps(found))
"""


def test_ddp_and_xla_model_around_a_bundle(saved: tuple[Path, Path], fresh_process: FreshProcess) -> None:
    """With one process, as XLA's CPU client has no others: the wrapper's hooks and the reductions run, and change nothing."""
    found = run(fresh_process, ONE_OF_ONE, *saved)
    expected = eager()
    for name in ("reduced", "ddp"):
        check(found[name], *expected)  # type: ignore[arg-type]
