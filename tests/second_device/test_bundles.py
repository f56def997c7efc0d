"""What a user does with a bundle on a device that is not the CPU: each is compared with eager on the CPU."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.export import Dim

import aotpack
from aotpack.tools.cli import main
from aotpack_loader.errors import CorruptBundleError, InputError, ModeError, OperatorError, TargetError, TrustError
from devtools.paths import ROOT


class Network(nn.Module):
    """Normalisation, dropout, a buffer, tied weights, and a further method."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.second, self.third = nn.Linear(16, 16), nn.Linear(16, 16)
        self.third.weight = self.second.weight
        self.drop = nn.Dropout(0.3)
        whole = torch.arange(16.0)
        self.register_buffer("whole", whole)
        self.register_buffer("even", whole[::2])

    def encode(self, x: Tensor) -> Tensor:
        return self.first(x)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(F.gelu(self.norm(self.encode(x) + self.whole)))
        return self.third(self.second(hidden)) * torch.tensor(0.5) + torch.arange(16) + self.even.sum()


class Attention(nn.Module):
    """A block of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 16), nn.LayerNorm(16)
        self.inner, self.outer = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k, v = self.inner(self.norm(x)).view(*tokens.shape, 3, 2, 8).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.outer(attended.transpose(1, 2).reshape(x.shape))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


def images() -> nn.Module:
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(8, 4, 2, stride=2)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "network": (Network, lambda: torch.randn(6, 8)),
    "attention": (Attention, lambda: torch.randint(11, (2, 5))),
    "recurrent": (Recurrent, lambda: torch.randn(2, 5, 4)),
    "images": (images, lambda: torch.randn(2, 3, 8, 8)),
}


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, example = MODELS[name]
    return model(), example()


def build(model: nn.Module, *args: Any, out: Path, **options: Any) -> Path:
    aotpack.build(model, args, out=out, targets=("portable",), cache=False, **options)
    return out


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, x = made("network")
    methods = {"encode": aotpack.Method("encode", (x,))}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return build(model, x, out=tmp_path_factory.mktemp("network") / "m.aotpack", optimizer=optimizer, methods=methods)


def step(model: Any, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def assert_equal_state(found: nn.Module, expected: nn.Module, device: torch.device) -> None:
    state = found.state_dict()
    assert {value.device for value in state.values()} == {device}
    torch.testing.assert_close({name: value.cpu() for name, value in state.items()}, dict(expected.state_dict()))


@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_in_eager(name: str, tmp_path: Path, device: torch.device) -> None:
    """The device's generator is seeded with the CPU's, so what is dropped is the same, too."""
    model, x = made(name)
    loaded = aotpack.load(build(model, x, out=tmp_path / "m.aotpack"), device=device)
    assert set(loaded.aotpack.calls.values()) == {"python: portable graphs are interpreted"}
    ours, theirs = (torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (loaded, model))
    for seed in range(3):
        torch.manual_seed(seed)
        expected = step(model, theirs, x)
        torch.manual_seed(seed)
        found = step(loaded, ours, x.to(device))
        assert found.device == device
        torch.testing.assert_close(found.cpu(), expected)
    assert_equal_state(loaded, model, device)
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(x.to(device)).cpu(), model.eval()(x))


@pytest.mark.parametrize("check", ["arguments", "full"])
def test_an_optimizer_of_the_bundle_and_its_checkpoints(network: Path, tmp_path: Path, device: torch.device, check: Any) -> None:
    """A run that goes on from a checkpoint draws what the first one draws."""
    model, x = made("network")
    loaded = aotpack.load(network, device=device, check=check)
    ours, theirs = loaded.aotpack.optimizer(), torch.optim.AdamW(model.parameters(), lr=1e-2)
    there = x.to(device)
    torch.manual_seed(3)
    for _ in range(2):
        step(model, theirs, x)
    torch.manual_seed(3)
    for _ in range(2):
        step(loaded, ours, there)
    assert_equal_state(loaded, model, device)
    loaded.aotpack.save_checkpoint(tmp_path / "c", optimizer=ours)
    expected = [step(loaded, ours, there) for _ in range(2)]
    other = aotpack.load(network, device=device, weights=False)
    again = other.aotpack.optimizer()
    other.aotpack.load_checkpoint(tmp_path / "c", optimizer=again)
    assert torch.equal(torch.stack([step(other, again, there) for _ in range(2)]), torch.stack(expected))
    torch.testing.assert_close(dict(other.state_dict()), dict(loaded.state_dict()), rtol=0, atol=0)
    on_the_cpu = aotpack.load(network)
    on_the_cpu.aotpack.load_checkpoint(tmp_path / "c")  # its own generator stays as it is


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    **{name: getattr(torch.optim, name) for name in ("NAdam", "RAdam", "Adagrad", "Adadelta", "Adamax", "ASGD", "Rprop")},
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9),
    "Adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_of_optimizers_are_those_of_torch(name: str, tmp_path: Path, device: torch.device) -> None:
    """Numbers stay on the CPU, and torch's own optimizer on the device takes the state."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    theirs = OPTIMIZERS[name](model.parameters())
    loaded = aotpack.load(build(model, x, out=tmp_path / "m.aotpack", optimizer=theirs), device=device)
    ours = loaded.aotpack.optimizer()
    for _ in range(7):
        step(model, theirs, x)
        step(loaded, ours, x.to(device))
    eager = copy.deepcopy(model).to(device)
    on_device = OPTIMIZERS[name](eager.parameters())
    on_device.load_state_dict(copy.deepcopy(ours.state_dict()))
    ours.load_state_dict(copy.deepcopy(on_device.state_dict()))
    step(eager, on_device, x.to(device))
    step(model, theirs, x)
    step(loaded, ours, x.to(device))
    assert_equal_state(loaded, model, device)
    assert_equal_state(eager, model, device)


def test_memory_that_entries_share_is_shared_there(network: Path, device: torch.device) -> None:
    loaded = aotpack.load(network, device=device)
    assert loaded.third.weight is loaded.second.weight
    assert loaded.even.stride() == (2,)
    loaded.whole.zero_()
    assert not loaded.even.cpu().any()


def test_further_methods_and_copies(network: Path, device: torch.device) -> None:
    model, x = made("network")
    copied = copy.deepcopy(aotpack.load(network, device=device))
    with torch.no_grad():
        torch.testing.assert_close(copied.aotpack.method("encode")(x.to(device)).cpu(), model.encode(x))


def test_the_device_has_an_index(network: Path) -> None:
    """Without one it is the current device; a tensor of another one is refused by its path."""
    x = made("network")[1]
    torch.get_device_module("simulated").set_device(1)
    try:
        loaded = aotpack.load(network, device="simulated")
    finally:
        torch.get_device_module("simulated").set_device(0)
    assert loaded(x.to("simulated:1")).device == torch.device("simulated:1")
    for place in ("simulated:0", "cpu"):
        with pytest.raises(
            InputError, match=rf"x: expected float32\[6,8\] on simulated:1, got float32\[6,8\] on {place}; move it"
        ):
            loaded(x.to(place))


def test_a_moved_module_says_what_to_call(tmp_path: Path, device: torch.device) -> None:
    x = torch.randn(2, 4)
    loaded = aotpack.load(build(nn.Linear(4, 3), x, out=tmp_path / "m.aotpack"))
    expected = loaded(x)
    with pytest.raises(InputError, match=r"(?s)weight: .*load it there with aotpack.load\(…, device='simulated:0'\)"):
        loaded.to(device)(x.to(device))
    assert torch.equal(loaded.cpu()(x), expected)


def test_what_is_not_there_is_refused(network: Path) -> None:
    with pytest.raises(TargetError, match=r"(?s)device=simulated:7: .*no such device.*Here are cpu, simulated:0, simulated:1"):
        aotpack.load(network, device="simulated:7")
    with pytest.raises(TargetError, match="xla"):
        aotpack.load(network, device="xla")


def test_untrusted_bundles_stay_on_the_cpu(network: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_STATE", str(network.parent / "nobody"))
    with pytest.raises(TrustError, match=r"(?s)on the CPU alone, and device='simulated:0'.*trust=\"sha256:"):
        aotpack.load(network, device=device)
    assert aotpack.load(network, device=device, trust="all").first.weight.device == device
    aotpack.load(network)


def test_native_code_stays_on_the_cpu(device: torch.device, recwarn: pytest.WarningsRecorder) -> None:
    """Portable graphs run beside it, without a warning: no native code is for this device."""
    bundle = ROOT / "spec" / "vectors" / "v1" / "valid" / "targets" / "bundle.aotpack"
    loaded = aotpack.load(bundle, device=device, trust="all")
    assert loaded.aotpack.backend == "portable"
    assert not recwarn.list
    assert loaded.aotpack.rejected
    for name in loaded.aotpack.rejected:
        with pytest.raises(TargetError, match=r"runs on .*, and device='simulated:0' was asked for"):
            aotpack.load(bundle, device=device, backend=name, trust="all")


def test_autocast_is_that_of_the_device(tmp_path: Path, device: torch.device) -> None:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    loaded = aotpack.load(build(model, x, out=tmp_path / "m.aotpack", autocast="bf16"), device=device)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
        with pytest.raises(ModeError, match=r"autocast\('simulated', dtype=torch.bfloat16\)"):
            loaded(x.to(device))
    with torch.autocast("simulated", dtype=torch.bfloat16):
        found = loaded(x.to(device))
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.cpu(), expected)
    found.sum().backward()
    assert loaded.weight.grad.device == device


class Windows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.t().sin().t()
        return y.as_strided((2, 3), (y.stride(0), y.stride(1))) * 2


def test_strides_that_vary_are_refused(tmp_path: Path, device: torch.device) -> None:
    out = build(Windows(), torch.randn(4, 5), out=tmp_path / "m.aotpack", dynamic_shapes={"x": {1: Dim.DYNAMIC}})
    with pytest.raises(TargetError, match="reads memory by as_strided, in strides that vary"):
        aotpack.load(out, device=device)


class Picks(nn.Module):
    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        count = int(index[0])
        torch._check(count >= 0)
        return x[index] * count + x.cpu().to("cpu").sum()


def test_host_reads_indices_and_moves(tmp_path: Path, device: torch.device) -> None:
    """``item()`` waits for the device, and a move to the CPU does nothing. Errors of operators are those of eager."""
    x, index = torch.randn(5, 2, requires_grad=True), torch.tensor([2, 4])
    loaded = aotpack.load(build(Picks(), x, index, out=tmp_path / "m.aotpack"), device=device)
    there = x.detach().to(device).requires_grad_()
    found, expected = loaded(there, index.to(device)), Picks()(x, index)
    torch.testing.assert_close(found.cpu(), expected)
    expected.sum().backward()
    found.sum().backward()
    assert there.grad is not None
    torch.testing.assert_close(there.grad.cpu(), x.grad)
    with pytest.raises(OperatorError, match=r"out of (bounds|range)"):
        loaded(there, torch.tensor([2, 9], device=device))


def invoke(*args: object) -> Any:
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_commands(network: Path, tmp_path: Path) -> None:
    found, expected = (invoke("run", network, "--json", *more) for more in (["--device", "simulated"], []))
    assert found["loss"] == pytest.approx(expected["loss"])
    assert found["gradient_norm"] == pytest.approx(expected["gradient_norm"])


def test_commands_that_check_and_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made("images")
    bundle = build(model, x, out=tmp_path / "m.aotpack", self_test=True)
    checks = {check["name"]: check for check in invoke("verify", bundle, "--device", "simulated", "--json")["checks"]}
    assert checks["self-test portable"]["status"] == "ok"
    monkeypatch.chdir(ROOT / "tests")
    words = "--device", "simulated", "--import", "second_device.registered", "--rounds", 1, "--iterations", 2, "--json"
    assert [item["name"] for item in invoke("bench", bundle, *words)] == ["bundle, portable"]
    done = CliRunner().invoke(main, ["bench", str(bundle), "--device", "meta"])
    assert done.exit_code == 1
    assert "needs tensors with memory and strides" in done.output


class Scored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 1), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.drop(self.linear(x)).square().mean()}


def test_a_training_command_goes_on(tmp_path: Path) -> None:
    model = Scored()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bundle = build(model, torch.randn(4, 4), out=tmp_path / "m.aotpack", optimizer=optimizer)
    save_file({"x": torch.randn(16, 4)}, tmp_path / "data.safetensors")
    common = ["train", bundle, "--data", tmp_path / "data.safetensors", "--device", "simulated", "--json"]
    whole = invoke(*common, "-o", tmp_path / "whole", "--epochs", 2)
    invoke(*common, "-o", tmp_path / "parts", "--epochs", 1)
    assert invoke(*common, "-o", tmp_path / "parts", "--epochs", 2)["loss"] == whole["loss"]


def test_a_damaged_state_of_the_generator(device: torch.device) -> None:
    from aotpack_loader.devices.generator import exchange_random_state, random_state

    before = random_state(device)
    with pytest.raises(CorruptBundleError, match="random generator"):
        exchange_random_state(torch.zeros(3, dtype=torch.uint8), device)
    assert torch.equal(random_state(device), before)


def test_the_device_is_no_cpu(device: torch.device) -> None:
    """A kernel refuses what is on the CPU, but a number; two devices do not mix either."""
    x = torch.randn(3, device=device)
    assert torch.equal((x * torch.tensor(2.0)).cpu(), x.cpu() * 2)
    for other in (torch.randn(3), torch.randn(3, device="simulated:1")):
        with pytest.raises(RuntimeError, match="same device"):
            x + other
    with pytest.raises(RuntimeError, match="same device"):
        torch.where(torch.tensor(True), x, x)
    torch.manual_seed(0)
    drawn = torch.randn(3, device=device)
    torch.manual_seed(0)
    assert torch.equal(drawn.cpu(), torch.randn(3))
