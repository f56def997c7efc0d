"""Several methods of one module in a bundle: their results and gradients beside eager, shared state, errors."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from conftest import FreshProcess
from torch import Tensor, nn

import aotpack
import aotpack_loader
from aotpack.model.entry import load_entry
from aotpack.tools.cli import main
from aotpack_loader import LoadedProgram
from aotpack_loader.errors import AotpackError, BuildError, CaptureError, EntryError, InputError, ModeError

BATCH = {0: torch.export.Dim("batch", min=2)}


class Codec(nn.Module):
    """An encoder with batch norm and a decoder that share a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.decoder = nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encoder(x) * self.scale)

    def decode(self, z: Tensor) -> Tensor:
        return self.decoder(z) * self.scale  # type: ignore[no-any-return]


def encode(model: Codec, x: Tensor) -> Tensor:
    return model.encoder(x) * model.scale  # type: ignore[no-any-return]


def score(model: Codec, x: Tensor, weight: float = 2.0) -> dict[str, Tensor]:
    return {"loss": F.mse_loss(model(x), x) * weight}


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> tuple[Codec, Path]:
    """A model and its bundle: its own call and three methods."""
    torch.manual_seed(0)
    model, x, out = Codec(), torch.randn(5, 4), tmp_path_factory.mktemp("codec") / "codec.aotpack"
    methods = {
        "encode": aotpack.Method(encode, (x,), dynamic_shapes={"x": BATCH}),
        "decode": aotpack.Method("decode", (torch.randn(5, 3, requires_grad=True),), dynamic_shapes={"z": BATCH}),
        "score": aotpack.Method(score, (), {"x": x}, dynamic_shapes={"x": BATCH}, modes=("train",)),
    }
    report = aotpack.build(model, (x,), out=out, targets=("portable",), dynamic_shapes={"x": BATCH}, methods=methods)
    assert report.methods == (
        "train", "infer", "encode.train", "encode.infer", "decode.train", "decode.infer", "score.train",
    )  # fmt: skip
    assert not report.warnings
    return model, out


@pytest.fixture
def pair(codec: tuple[Codec, Path]) -> tuple[Codec, LoadedProgram]:
    model, out = codec
    return copy.deepcopy(model), aotpack_loader.load(out)


def differing(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between the parameters, their gradients and the buffers of two modules."""
    pairs = [*zip(one.parameters(), other.parameters(), strict=True)]
    assert [p.grad is None for p, _ in pairs] == [q.grad is None for _, q in pairs]
    gradients = [(p.grad, q.grad) for p, q in pairs if p.grad is not None and q.grad is not None]
    state = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in (*gradients, *state))


def test_gradients_go_through_methods(pair: tuple[Codec, LoadedProgram]) -> None:
    """What one method returns is an argument of another; the statistics of the batch norm are the module's."""
    model, loaded = pair
    x = torch.randn(7, 4)
    z = loaded.aotpack.method("encode")(x)
    loss = F.mse_loss(loaded.aotpack.method("decode")(z), x)
    expected = F.mse_loss(model.decode(encode(model, x)), x)
    loss.backward()
    expected.backward()
    assert torch.equal(loss, expected)
    assert differing(model, loaded) == 0
    assert loaded.get_buffer("encoder.1.num_batches_tracked") == 1
    assert loaded.decoder.weight.grad is not None


def test_methods_and_the_call_share_the_state(pair: tuple[Codec, LoadedProgram]) -> None:
    """One method trains, and another and the module itself infer with the same parameters and buffers."""
    model, loaded = pair
    encode_, score_ = loaded.aotpack.method("encode"), loaded.aotpack.method("score")
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (model, loaded)]
    x = torch.randn(3, 4)
    for _ in range(3):
        for optimizer, loss in zip(optimizers, (score(model, x)["loss"], score_(x=x)["loss"]), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval(), loaded.eval()
        with torch.no_grad():
            assert torch.equal(encode_(x), encode(model, x))
            assert torch.equal(loaded(x), model(x))
        model.train(), loaded.train()
    assert differing(model, loaded) == 0


def test_calls_are_checked_as_calls_of_the_module(pair: tuple[Codec, LoadedProgram]) -> None:
    _, loaded = pair
    encode_, score_ = loaded.aotpack.method("encode"), loaded.aotpack.method("score")
    with pytest.raises(InputError, match=r"x: expected float32\[batch=2\.\.,4\], got float32\[3,5\]"):
        encode_(torch.randn(3, 5))
    with pytest.raises(InputError, match="weight"):
        score_(x=torch.randn(3, 4), weight=3.0)
    assert score_(x=torch.randn(3, 4), weight=2.0)["loss"].requires_grad
    loaded.eval()
    with pytest.raises(ModeError, match=r"no method of 'score' for eval\(\) with gradients on(.|\n)*method 'score.train'"):
        score_(x=torch.randn(3, 4))
    loaded.encoder.eval()
    loaded.train()
    loaded.encoder[1].eval()  # type: ignore[index]
    with pytest.raises(ModeError, match=r"encoder\.1"):
        encode_(torch.randn(3, 4))
    assert loaded.aotpack.method("decode")(torch.randn(3, 3)).requires_grad, "it does not depend on that mode"
    with pytest.raises(AotpackError, match=r"no method \[\]"):
        loaded.aotpack.method([])  # type: ignore[arg-type]


def test_unknown_methods_are_refused(pair: tuple[Codec, LoadedProgram]) -> None:
    _, loaded = pair
    with pytest.raises(AotpackError, match=r"no method 'encoder'.\nIt has decode, encode, score."):
        loaded.aotpack.method("encoder")
    with pytest.raises(AotpackError, match="does not exist any more"):
        aotpack_loader.load(loaded.aotpack.path).aotpack.method("encode")
    assert repr(loaded.aotpack.method("encode")).endswith("codec.aotpack: encode.infer, encode.train>")
    assert "encode.train: calls by" in repr(loaded.aotpack)


def test_copies_have_methods_of_their_own(pair: tuple[Codec, LoadedProgram]) -> None:
    _, loaded = pair
    x = torch.randn(3, 4)
    copied = copy.deepcopy(loaded).eval()
    loaded.eval()
    with torch.no_grad():
        copied.scale.zero_()
        assert not copied.aotpack.method("encode")(x).any()
        assert loaded.aotpack.method("encode")(x).any()


def test_a_compiled_caller_has_methods_in_its_graph(pair: tuple[Codec, LoadedProgram]) -> None:
    model, loaded = pair
    encode_, x = loaded.aotpack.method("encode"), torch.randn(3, 4)
    compiled = torch.compile(lambda x: encode_(x * 2).sum(), backend="aot_eager", fullgraph=True)
    compiled(x).backward()
    encode(model, x * 2).sum().backward()
    assert differing(model, loaded) == 0


# ---------------------------------------------------------------- two optimizers


class Gan(nn.Module):
    """A generator and a discriminator. It has no call of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "generator": lambda model: torch.optim.Adam(model.generator.parameters(), lr=1e-2),
    "discriminator": lambda model: torch.optim.SGD(model.discriminator.parameters(), lr=1e-1, momentum=0.9),
}
TRAIN = """
import torch
import torch.nn.functional as F
from click.testing import CliRunner

def train(generate, judge, of_generator, of_discriminator):
    numbers = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(5):
        real, noise = torch.randn(6, 4, generator=numbers), torch.randn(6, 2, generator=numbers)
        fake = generate(noise)
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(fake.detach())).mean()
        of_discriminator.zero_grad()
        loss.backward()
        of_discriminator.step()
        of_generator.zero_grad()
        other = F.softplus(-judge(fake)).mean()
        other.backward()
        of_generator.step()
        losses += [loss.item(), other.item()]
    return losses
"""
LOADED = """
import json, sys
import aotpack_loader

model = aotpack_loader.load(sys.argv[1])
named = model.aotpack
losses = train(named.method("generate"), named.method("judge"), named.optimizer("generator"), named.optimizer("discriminator"))
state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
loaded = [name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules]
print(json.dumps([losses, state, loaded]))
"""


@pytest.mark.parametrize("target", ["portable", pytest.param("cpu", marks=pytest.mark.compiled)])
def test_two_optimizers_train_two_methods(target: str, tmp_path: Path, fresh_process: FreshProcess) -> None:
    torch.manual_seed(0)
    model, fake, out = Gan(), torch.randn(6, 4, requires_grad=True), tmp_path / "gan.aotpack"
    aotpack.build(
        model,
        out=out,
        targets=(target,),
        methods={
            "generate": aotpack.Method("generator", (torch.randn(6, 2),)),
            "judge": aotpack.Method(lambda gan, x: gan.discriminator(x), (fake,), modes=("train",)),
        },
        optimizer=OPTIMIZERS,
    )
    loaded = aotpack_loader.load(out)
    with pytest.raises(ModeError, match=r"without a call of the module itself\. It has the methods generate, judge"):
        loaded(torch.randn(6, 2))
    known: dict[str, Any] = {}
    exec(TRAIN, known)
    expected = known["train"](
        model.generator, model.discriminator, OPTIMIZERS["generator"](model), OPTIMIZERS["discriminator"](model)
    )
    losses, state, imported = fresh_process(TRAIN + LOADED, out)  # on cpu it starts from a record
    tolerance = 0 if target == "portable" else 1e-4
    assert losses == pytest.approx(expected, rel=tolerance, abs=tolerance)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(torch.tensor(state[name], dtype=tensor.dtype), tensor, rtol=tolerance, atol=tolerance)
    assert imported == []


# ---------------------------------------------------------------- what a build refuses


def build(tmp_path: Path, methods: Any, *args: Any, model: Any = None, **options: Any) -> Any:
    out = tmp_path / "refused.aotpack"
    return aotpack.build(model or Codec(), *args, out=out, methods=methods, **{"targets": ("portable",), **options})


X = torch.randn(5, 4)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({}, "methods: at least one is needed"),
        ({"encode": encode}, r"methods\['encode'\]: expected an aotpack.Method\(function, args\), got function"),
        ({"2nd": aotpack.Method(encode, (X,))}, "not an identifier"),
        ({"a" * 256: aotpack.Method(encode, (X,))}, r"methods\['a{20}'…\]: is no name of a method: it has 256 letters"),
        ({"encode": aotpack.Method(encode, X)}, "args: expected a tuple of example inputs, got Tensor"),  # type: ignore[arg-type]
        ({"encode": aotpack.Method(3, (X,))}, "function is a int, no function"),  # type: ignore[arg-type]
        ({"encode": aotpack.Method(encode, (X,), modes=("test",))}, r"\['encode'\].modes: 'test' is not one of train"),
        ({"encode": aotpack.Method("encodes", (X,))}, r"methods\['encode'\]: Codec has no method or submodule 'encodes'"),
        ({"forward": aotpack.Method(encode, (X,))}, "is the model's own call: its function is 'forward'"),
        (
            {"encode": aotpack.Method(encode, (X,), dynamic_shapes={"y": BATCH})},
            r"methods\['encode'\]: dynamic_shapes does not fit(.|\n)*no example input has that name; there are: x",
        ),
    ],
)
def test_wrong_methods_are_refused(methods: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=message):
        build(tmp_path, methods)


def test_state_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"methods\['embed'\]: The model fails(.|\n)*no attribute 'embedding'"):
        build(tmp_path, {"embed": aotpack.Method(lambda model, x: model.embedding(x), (X,))})
    other = nn.Linear(4, 3)
    with pytest.raises(AotpackError, match=r"methods\['embed'\](.|\n)*a parameter the model does not own|make it a parameter"):
        build(tmp_path, {"embed": aotpack.Method(lambda model, x: other(x), (X,))})


def counting(model: Any, x: Tensor) -> Tensor:
    model.count += 1
    return model.layer(x) * model.count  # type: ignore[no-any-return]


class Odd(nn.Module):
    """Names that a build gives to attributes elsewhere, a layer with two names, and a value of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self._function = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        self.layer, self.count = self.model, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) * self._function


def test_python_state_is_refused_by_the_users_name(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"methods\['counting'\](.|\n)*  model\.count: read, and changed for the next call"):
        build(tmp_path, {"counting": aotpack.Method(counting, (X,))}, model=Odd())


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_every_front_end_traces_methods(front_end: str, tmp_path: Path) -> None:
    """Among them callables that are no functions, a bound method, and one that calls the model and writes to its argument."""

    def scaled(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return x, model(x)

    torch.manual_seed(0)
    model, modes = Odd(), ("train",)
    methods = {
        "scaled": aotpack.Method(scaled, (X,), modes=modes),
        "again": aotpack.Method(functools.partial(lambda model, x, times: model(x) * times, times=3), (X,), modes=modes),
        "bound": aotpack.Method(model.forward, (X,), modes=modes),
    }
    build(tmp_path, methods, model=model, front_ends=(front_end,))
    loaded = aotpack_loader.load(tmp_path / "refused.aotpack")
    given, expected = X.clone(), model(X * 2)
    same, result = loaded.aotpack.method("scaled")(given)
    assert same is given
    assert torch.equal(given, X * 2)
    for found, original in ((result, expected), (loaded.aotpack.method("again")(X), model(X) * 3)):
        found.sum().backward()
        original.sum().backward()
        assert torch.equal(found, original)
    assert differing(model, loaded) == 0
    assert torch.equal(loaded.aotpack.method("bound")(X), model(X))


def test_second_derivatives_and_autocast(tmp_path: Path) -> None:
    """A gradient penalty of one method, which is also built for calls under autocast."""
    torch.manual_seed(0)
    model, x = Codec(), torch.randn(5, 3, requires_grad=True)
    methods = {"decode": aotpack.Method("decode", (x,), modes=("train",))}
    report = build(tmp_path, methods, model=model, second_derivatives=True, autocast="none,bf16")
    assert report.methods == ("decode.train", "decode.train.bf16")
    loaded = aotpack_loader.load(tmp_path / "refused.aotpack")
    decode = loaded.aotpack.method("decode")
    penalties = []
    for called in (decode, model.decode):
        (gradient,) = torch.autograd.grad(called(x).square().sum(), x, create_graph=True)
        penalties += torch.autograd.grad(gradient.square().sum(), x)
    assert torch.equal(*penalties)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(decode(x), model.decode(x))


def test_options_that_call_the_model_need_its_example(tmp_path: Path) -> None:
    methods = {"encode": aotpack.Method(encode, (X,))}
    with pytest.raises(BuildError, match="self_test: calls the model itself, which has no example inputs"):
        build(tmp_path, methods, self_test=True)
    with pytest.raises(BuildError, match="args: expected a tuple of positional arguments, got NoneType"):
        build(tmp_path, ("train",))
    with pytest.raises(BuildError, match="has example inputs of the model's own call, and so has args"):
        build(tmp_path, {"forward": aotpack.Method("forward", (X,))}, (X,))
    with pytest.raises(BuildError, match=r"Only a torch\.nn\.Module has methods"):
        build(tmp_path, methods, (X,), model=lambda x: x)


# ---------------------------------------------------------------- model.py and commands

AGENT = """
import torch
from torch import nn

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.policy, self.value = nn.Linear(8, 2), nn.Linear(8, 1)

    def act(self, observation):
        return self.policy(self.body(observation)).softmax(-1)

def evaluate(agent, observation, action):
    features = agent.body(observation)
    return agent.policy(features).log_softmax(-1).gather(-1, action), agent.value(features)

model = Agent
"""
METHODS = """
batch = torch.export.Dim("batch", min=2)
methods = {"act": "act", "evaluate": evaluate}
dynamic_shapes = {"act": {"observation": {0: batch}}, "evaluate": {"observation": {0: batch}, "action": {0: batch}}}

def example_inputs():
    observation = torch.randn(3, 4)
    return {"act": (observation,), "evaluate": ((observation,), {"action": torch.zeros(3, 1, dtype=torch.int64)})}
"""


def command(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(main, list(map(str, words)))
    return found.exit_code, found.output


def test_commands_know_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent whose rollout and training have the same weights in memory."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "model.py").write_text(AGENT + METHODS)
    out = tmp_path / "agent.aotpack"
    assert command("build", tmp_path / "model.py", "-o", out, "--target", "portable")[0] == 0
    code, shown = command("inspect", out)
    assert code == 0
    assert "evaluate.train  of evaluate, serves train() with grad" in shown
    code, shown = command("run", out, "--method", "evaluate")
    assert code == 0, shown
    assert "gradient" in shown
    for words, message in ((("run", out), "no steps of the module itself"), (("run", out, "--method", "policy"), "'policy'")):
        code, shown = command(*words)
        assert code
        assert message in shown
        assert "It has the methods act, evaluate." in shown

    loaded = aotpack_loader.load(out)
    act, evaluate = loaded.aotpack.method("act"), loaded.aotpack.method("evaluate")
    optimizer = torch.optim.SGD(loaded.parameters(), lr=0.1)
    observation, before = torch.randn(6, 4), []
    for _ in range(3):
        loaded.eval()
        with torch.no_grad():
            chances = act(observation)
        loaded.train()
        before.append(chances[:, 1].mean().item())
        log, value = evaluate(observation, action=torch.ones(6, 1, dtype=torch.int64))
        (value.square().mean() - log.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert before == sorted(before), "the rollout acts with the weights that were trained"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("methods = [1]", "`methods` is a list, not a dict of functions of the model"),
        ("methods = {'act': 3}", "`methods` is a dict, not a dict of functions"),
        ("def example_inputs(): return (torch.ones(3, 4),)", r"returned a tuple, and `methods` needs a dict"),
        ("def example_inputs(): return {'act': (torch.ones(3, 4),)}", r"has no inputs of 'evaluate'"),
        (
            "def example_inputs(): return {'act': (), 'evaluate': (), 'see': ()}",
            r"has inputs of 'see', which is not in `methods`",
        ),
        ("def example_inputs(): return {'act': torch.ones(3, 4), 'evaluate': ()}", r"has for 'act' a Tensor, not a tuple"),
        ("dynamic_shapes = {'observation': {0: batch}}", r"`dynamic_shapes` has 'observation', and example_inputs\(\) does not"),
    ],
)
def test_wrong_files_are_refused(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(f"{AGENT}{METHODS}{lines}\n")
    with pytest.raises(EntryError, match=message):
        load_entry(str(tmp_path / "model.py"))
