"""Results that are records: what torch's tree functions, DDP and FSDP make of them."""

from __future__ import annotations

import collections
import copy
import dataclasses
import pickle  # noqa: TID251 - what a caller may do with results
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree
from conftest import FreshProcess
from torch import Tensor, nn

import aotpack
import aotpack_loader


class Pair(NamedTuple):
    loss: Tensor
    logits: Tensor


@dataclasses.dataclass
class Registered:
    loss: Tensor
    logits: Tensor
    extra: Any = None


pytree.register_dataclass(Registered)


@dataclasses.dataclass
class Unregistered:
    loss: Tensor
    logits: Tensor
    extra: Any = None


def _model_output(loss: Tensor, logits: Tensor) -> Any:
    from transformers.modeling_outputs import CausalLMOutputWithPast

    return CausalLMOutputWithPast(loss=loss, logits=logits)


MAKE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "named_tuple": Pair,
    "registered": Registered,
    "unregistered": Unregistered,
    "model_output": _model_output,
}


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.make = MAKE[kind]

    def forward(self, x: Tensor) -> Any:
        logits = self.linear(x)
        return self.make(logits.square().mean(), logits)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A bundle for each kind of record, built when it is first asked for."""
    folder = tmp_path_factory.mktemp("records")

    def build(kind: str) -> Path:
        path = folder / f"{kind}.aotpack"
        if not path.exists():
            import transformers.modeling_outputs  # noqa: F401 - registers its classes with pytree, unless torch is tracing

            aotpack.build(Model(kind), (torch.randn(2, 3),), out=path, targets=("portable",), methods=("train",))
        return path

    return build


@pytest.fixture
def results(built: Callable[[str], Path]) -> Callable[[str], tuple[Any, Any]]:
    """What eager and the bundle return."""

    def call(kind: str) -> tuple[Any, Any]:
        bundle = aotpack_loader.load(built(kind))
        model = Model(kind)
        model.load_state_dict(bundle.state_dict())
        x = torch.ones(2, 3)
        return model(x), bundle(x)

    return call


@pytest.mark.parametrize("kind", MAKE)
def test_records_are_what_torch_asks_for(results: Callable[[str], tuple[Any, Any]], kind: str) -> None:
    expected, found = results(kind)
    assert type(found).__name__ == type(expected).__name__
    assert dataclasses.is_dataclass(found) == dataclasses.is_dataclass(expected)
    leaves = pytree.tree_leaves(found)
    assert len(leaves) == len(pytree.tree_leaves(expected))
    assert [str(path) for path, _ in pytree.tree_leaves_with_path(found)] == [
        str(path) for path, _ in pytree.tree_leaves_with_path(expected)
    ]
    mapped = pytree.tree_map(lambda leaf: leaf, found)
    assert type(mapped) is type(found)
    torch.testing.assert_close(found.loss, expected.loss)
    assert found.loss.requires_grad


@pytest.mark.parametrize("kind", ["registered", "unregistered", "model_output"])
def test_records_are_dataclasses(results: Callable[[str], tuple[Any, Any]], kind: str) -> None:
    expected, found = results(kind)
    names = [field.name for field in dataclasses.fields(found)]
    assert names == [field.name for field in dataclasses.fields(expected)]
    changed = dataclasses.replace(found, loss=found.loss.detach(), logits=torch.zeros(()))
    assert type(changed) is type(found)
    assert dataclasses.asdict(changed).keys() == dataclasses.asdict(dataclasses.replace(changed)).keys()
    assert repr(changed) == repr(dataclasses.replace(expected, loss=changed.loss, logits=changed.logits))
    assert [getattr(found, name) is None for name in names] == [getattr(expected, name) is None for name in names]
    with pytest.raises(TypeError, match=r"no others|unexpected"):
        dataclasses.replace(found, nothing=1)


def test_named_tuples_act_as_such(results: Callable[[str], tuple[Any, Any]]) -> None:
    expected, found = results("named_tuple")
    loss, _logits = found
    assert found._fields == expected._fields == ("loss", "logits")
    assert found.loss is loss
    assert list(found._asdict()) == ["loss", "logits"]
    assert found._replace(loss=1).loss == 1
    assert type(found)._make([1, 2]) == type(found)(1, logits=2) == (1, 2)
    with pytest.raises(TypeError, match="2 fields, got 1"):
        type(found)._make([1])
    with pytest.raises(TypeError, match="missing logits"):
        type(found)(1)


@pytest.mark.parametrize("kind", MAKE)
def test_records_are_copied_and_pickled(results: Callable[[str], tuple[Any, Any]], kind: str) -> None:
    _, found = results(kind)
    plain = pytree.tree_map_only(Tensor, Tensor.detach, found)
    if kind == "unregistered":
        plain = dataclasses.replace(plain, loss=plain.loss.detach(), logits=plain.logits.detach())
    for again in (copy.copy(plain), copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert type(again) is type(plain)
        torch.testing.assert_close(again.logits, plain.logits)


def test_model_outputs_are_of_the_class_that_the_caller_imported(results: Callable[[str], tuple[Any, Any]]) -> None:
    from transformers.modeling_outputs import CausalLMOutputWithPast

    expected, found = results("model_output")
    assert type(found) is CausalLMOutputWithPast
    assert found.past_key_values is None
    assert list(found) == list(expected) == ["loss", "logits"]
    assert found[1] is found["logits"] is found.logits
    assert len(found.to_tuple()) == 2


STAND_IN = """
import json, sys
import torch
import torch.utils._pytree as pytree
import aotpack_loader
model = aotpack_loader.load(sys.argv[1])
found = model(torch.ones(2, 3))
assert "transformers" not in sys.modules
assert found[0] is found["loss"] is found.loss and found.past_key_values is None
doubled = pytree.tree_map(lambda value: value * 2, found)
assert type(doubled) is type(found) and doubled.loss == 2 * found.loss
of_items = type(found)(dict(found))
assert list(of_items) == ["loss", "logits"]
found.loss = found.loss * 3
assert found["loss"] is found.loss
print(json.dumps([type(found).__name__, isinstance(found, dict), list(found)]))
"""


def test_without_transformers_a_mapping_stands_in(built: Callable[[str], Path], fresh_process: FreshProcess) -> None:
    assert fresh_process(STAND_IN, built("model_output")) == ["CausalLMOutputWithPast", True, ["loss", "logits"]]


FIRST_IN_A_TRACE = """
import json, sys
import torch
import aotpack, aotpack_loader
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
    def forward(self, x):
        from transformers.modeling_outputs import SequenceClassifierOutput
        return SequenceClassifierOutput(logits=self.layer(x))
assert "transformers" not in sys.modules
aotpack.build(Model(), (torch.ones(1, 3),), out=sys.argv[1], targets=("portable",), front_ends=("dynamo",))
found = aotpack_loader.load(sys.argv[1])(torch.ones(1, 3))
assert found["logits"] is found.logits is found[0] and found.loss is None
print(json.dumps([type(found).__module__, isinstance(found, dict), list(found)]))
"""


def test_a_model_output_is_one_where_a_trace_imports_it_first(tmp_path: Path, fresh_process: FreshProcess) -> None:
    """It is then not registered with pytree when the build sees it."""
    assert fresh_process(FIRST_IN_A_TRACE, tmp_path / "m") == ["transformers.modeling_outputs", True, ["logits"]]


def test_only_model_outputs_are_looked_up() -> None:
    from transformers.utils.generic import ModelOutput

    from aotpack_loader.format import schema
    from aotpack_loader.runtime.records import maker

    assert "transformers.utils.generic" in sys.modules
    leaves: list[schema.Tree] = [schema.LeafNode()]
    for name in ("subprocess.Popen", "transformers.utils.generic.ContextManagers", "transformers.GPT2Config", "nowhere.at.all"):
        made = maker(schema.RecordNode(name, ["args"], leaves, "mapping"))([1])
        assert type(made).__module__ == "aotpack_loader.runtime.records"
        assert isinstance(made, ModelOutput)
        assert made.args == 1
    for name in ("__class__", "not a name"):
        with pytest.raises(aotpack_loader.AotpackError, match="cannot be attributes"):
            maker(schema.RecordNode("A", [name], leaves))


@dataclasses.dataclass
class WithMethods:
    loss: Tensor
    logits: Tensor

    def __repr__(self) -> str:
        return "mine"

    @property
    def best(self) -> Tensor:
        return self.logits.argmax(-1)


def test_methods_of_a_result_class_are_no_part_of_a_bundle(tmp_path: Path) -> None:
    """The build says so, and what is not there names the fields."""

    def model(x: Tensor) -> Any:
        return WithMethods(x.sum(), x * 2), collections.defaultdict(list, x=x * 3)

    report = aotpack.build(model, (torch.ones(2),), out=tmp_path / "x", targets=("portable",))
    said = "\n".join(report.warnings)
    assert "results: a WithMethods keeps its fields, and not __repr__, best of its class" in said
    assert "results: a defaultdict is returned as a dict, without its default" in said
    record, _ = aotpack.load(tmp_path / "x")(torch.ones(2))
    with pytest.raises(AttributeError, match="keeps the fields of the original class only: loss, logits"):
        record.best  # noqa: B018
    assert not hasattr(record, "best")
