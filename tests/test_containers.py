"""Dictionaries and lists among the arguments that a model changes or returns: the caller's own objects, as in eager."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import aotpack
from aotpack.capture import container_changes
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError, InputError, UnsupportedError
from aotpack_loader.selftest import run_self_test


@dataclass
class Record:
    a: Tensor
    b: Any = None


pytree.register_dataclass(Record)


def doubled(d: dict[str, Tensor]) -> Any:
    d["a"] = d["a"] * 2
    return d


def nested(d: dict[str, Any]) -> Any:
    d["inner"]["b"] = d["a"] * 2
    return d["a"] + 1


def methods_of_dict(d: dict[str, Any]) -> Any:
    first = d.pop("a")
    d.update(c=first * 3, b=None)
    made = d.setdefault("d", d["c"] + 1)
    d["a"] = first  # now the last
    return made * d["b"] if d["b"] is not None else made


def methods_of_list(items: list[Any]) -> Any:
    items.reverse()
    del items[0]
    items.insert(1, None)
    items += [3, "text", items[0] * 2]
    return items


def cleared(d: dict[str, Tensor]) -> Tensor:
    x = d["a"]
    d.clear()
    return x.sum()


def shared(d: dict[str, Any]) -> Any:
    d["more"] = {"inner": d["inner"], "twice": d["a"] * 2, "view": d["a"].view(-1), "written": d["inner"]["q"].add_(1)}
    return d["inner"], [d], d["a"]


def several(d: dict[str, Any], *, items: list[Any]) -> Any:
    d["a"] = d["a"].mul_(2)
    d["items"] = items
    items[0] = d["a"]
    return {"d": d, "x": items[1] * 3}


def a_record_returned(d: dict[str, Any]) -> Any:
    return d["record"], d["record"].a * 2


class InTraining(nn.Module):
    """Changes its argument in one mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, batch: dict[str, Any]) -> Any:
        y = self.layer(batch["x"])
        if self.training:
            batch["logits"] = y
            return (y - batch["x"]).square().sum()
        return y


def x(*sizes: int) -> Tensor:
    return torch.randn(*sizes).requires_grad_() * 1


CASES: dict[str, Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "a key": lambda: (doubled, ({"a": x(3)},), {}),
    "a key of a dictionary inside": lambda: (nested, ({"a": x(3), "inner": {}},), {}),
    "methods of dict": lambda: (methods_of_dict, ({"a": x(3), "b": x(3)},), {}),
    "methods of list": lambda: (methods_of_list, ([x(3), x(2), x(4)],), {}),
    "cleared": lambda: (cleared, ({"a": x(3)},), {}),
    "the caller's own inside new ones": lambda: (shared, ({"a": x(2, 3), "inner": {"q": x(2)}},), {}),
    "several, and tensors written": lambda: (several, (OrderedDict(a=x(3)),), {"items": [x(1), x(2)]}),
    "a record that is returned": lambda: (a_record_returned, ({"record": Record(x(3))},), {}),
}


def told(value: Any, names: dict[int, str]) -> Any:
    """A value, and by name what of it is an object that the caller had before."""
    name = names.get(id(value), "")
    if isinstance(value, Tensor):
        return name, value.requires_grad, value.detach().tolist()
    if isinstance(value, dict):
        return name, type(value).__name__, [(key, told(item, names)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return name, type(value).__name__, [told(item, names) for item in value]
    if isinstance(value, Record):
        return name, [told(item, names) for item in (value.a, value.b)]
    return value


def named(value: Any, path: str, names: dict[int, str], kept: list[Any]) -> dict[int, str]:
    """All objects in a value by id; ``kept`` keeps them alive."""
    kept.append(value)
    if isinstance(value, (Tensor, dict, list, Record)):
        names[id(value)] = path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else []
    for key, item in items:
        named(item, f"{path}.{key}", names, kept)
    return names


def observed(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a caller sees of a call and its backward: in the result, in the arguments, and in gradients."""
    kept: list[Any] = []
    names = named((args, list(kwargs.values())), "given", {}, kept)
    leaves = [tensor.grad_fn.next_functions[0][0].variable for tensor in kept if isinstance(tensor, Tensor)]  # type: ignore[union-attr]
    result = model(*args, **kwargs)
    seen = told((result, args, kwargs), names)
    tensors = {id(t): t for t in pytree.tree_leaves((result, args, kwargs)) if isinstance(t, Tensor) and t.requires_grad}
    torch.autograd.backward(list(tensors.values()), [torch.ones_like(tensor) for tensor in tensors.values()])
    return seen, [None if leaf.grad is None else leaf.grad.tolist() for leaf in leaves]


FRONT_ENDS = ("dynamo", "export", "trace")
EACH = ("a key", "methods of dict", "the caller's own inside new ones")


@pytest.mark.parametrize(
    ("case", "front_ends"),
    [*((case, FRONT_ENDS) for case in CASES), *((case, (end,)) for case in EACH for end in FRONT_ENDS[1:])],
)
def test_the_callers_containers_are_changed_and_returned(case: str, front_ends: tuple[str, ...], tmp_path: Path) -> None:
    model, args, kwargs = CASES[case]()
    before, out = told((args, kwargs), {}), tmp_path / "m.aotpack"
    aotpack.build(model, args, kwargs, out=out, targets=("portable",), self_test=case == "a key", front_ends=front_ends)
    assert told((args, kwargs), {}) == before
    with Bundle.open(out) as bundle:
        assert set(bundle.program.features) - {"result-sources"} == {"containers"}
    assert case != "a key" or run_self_test(out, backend="portable").ok
    seen = []
    for one in (model, aotpack.load(out, backend="portable"), aotpack.load(out, backend="portable", check="full")):
        torch.manual_seed(1)
        seen.append(observed(one, *CASES[case]()[1:]))
    assert seen[0] == seen[1] == seen[2]


def test_what_happens_in_one_mode_happens_there(tmp_path: Path) -> None:
    model = InTraining()
    aotpack.build(model, ({"x": x(2, 3)},), out=tmp_path / "m.aotpack", targets=("portable",))
    for one in (model, aotpack.load(tmp_path / "m.aotpack", backend="portable")):
        one.train()
        batch = {"x": torch.ones(2, 3)}
        one(batch).backward()
        assert list(batch) == ["x", "logits"]
        assert batch["logits"].requires_grad
        batch = {"x": torch.ones(2, 3)}
        with torch.no_grad():
            assert torch.equal(one.eval()(batch), model.eval()(batch))
        assert list(batch) == ["x"]


def test_the_order_of_the_callers_keys_stays(tmp_path: Path) -> None:
    aotpack.build(doubled, ({"a": torch.ones(3), "b": torch.ones(1)},), out=tmp_path / "m.aotpack", targets=("portable",))
    given = {"b": torch.ones(1), "a": torch.ones(3)}
    assert aotpack.load(tmp_path / "m.aotpack")(given) is given
    assert list(given) == ["b", "a"]
    assert torch.equal(given["a"], torch.full((3,), 2.0))


def test_calls_that_cannot_be_changed_so_are_refused_by_path(tmp_path: Path) -> None:
    def model(d: dict[str, Any], items: Any, more: dict[str, Any]) -> Tensor:
        d["a"] = d["a"] * 2
        items[0] = d["a"]
        return more["a"] * 3

    def given() -> dict[str, Any]:
        return {"a": torch.ones(3)}

    aotpack.build(model, (given(), [torch.ones(1)], given()), out=tmp_path / "m.aotpack", targets=("portable",))
    loaded, one = aotpack.load(tmp_path / "m.aotpack"), given()
    with pytest.raises(InputError) as error:
        loaded(one, (torch.ones(1),), one)
    assert "items: expected a list, which the model changes, got tuple" in str(error.value)
    assert "d: the model changes it, and it is the same object as more" in str(error.value)
    assert torch.equal(one["a"], torch.ones(3))


def test_what_cannot_be_repeated_is_refused_with_its_line(tmp_path: Path) -> None:
    def in_a_record(d: dict[str, Any]) -> Tensor:
        y = d["a"] * 2
        d["r"].b = y
        return y

    line = r"d\['r'\]: a .*Record, is changed .*test_containers.py:\d+: d\[\"r\"\].b = y"
    example = ({"a": torch.ones(3), "r": Record(torch.ones(2))},)
    with pytest.raises(UnsupportedError, match=line):
        aotpack.build(in_a_record, example, out=tmp_path / "m.aotpack", targets=("portable",))
    one = {"a": torch.ones(3)}
    with pytest.raises(UnsupportedError, match="d: is changed, and is the same object as e"):
        aotpack.build(lambda d, e: doubled(d)["a"] + e["a"], (one, one), out=tmp_path / "m.aotpack", targets=("portable",))


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_a_change_that_was_not_foreseen_is_refused(front_end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the model cannot be run on fake tensors beforehand."""
    monkeypatch.setattr("aotpack.capture.containers.find", lambda *args, **kwargs: container_changes.Containers())
    with pytest.raises(BuildError, match=r"is changed|changes a container among its arguments"):
        aotpack.build(
            nested, CASES["a key of a dictionary inside"]()[1], out=tmp_path / "m", targets=("portable",), front_ends=(front_end,)
        )


# ---------------------------------------------------------------- arguments that are objects


@dataclass
class Batch:
    x: Tensor
    scale: Any = None
    signs: Any = field(init=False)
    runs: ClassVar[int] = 0

    def __post_init__(self) -> None:
        type(self).runs += 1
        self.signs = self.x.detach().sign()

    def scaled(self) -> Tensor:
        return self.x if self.scale is None else self.x * self.scale


class Batched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, batch: Batch, more: list[Batch]) -> Any:
        more[0].x.mul_(2)
        return self.layer(batch.scaled()) * batch.signs + more[0].x


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_a_dataclass_is_an_argument(tmp_path: Path, front_end: str) -> None:
    """It needs no registration, before or after, and its ``__post_init__`` does not run again."""
    model = Batched()
    aotpack.build(
        model,
        (Batch(torch.ones(2, 3, requires_grad=True)), [Batch(torch.ones(3))]),
        out=tmp_path / "x",
        targets=("portable",),
        front_ends=(front_end,),
    )
    assert Batch not in pytree.SUPPORTED_NODES
    loaded = aotpack.load(tmp_path / "x")
    found: list[Any] = []
    expected: list[Any] = []
    for called, seen in ((model, expected), (loaded, found)):
        batch, more = Batch(torch.arange(6.0).view(2, 3).requires_grad_()), [Batch(torch.ones(3))]
        Batch.runs = 0
        result = called(batch, more)
        assert Batch.runs == 0
        result.sum().backward()
        seen += [result, batch.x.grad, more[0].x, called.layer.weight.grad]
    torch.testing.assert_close(found, expected)
    with pytest.raises(InputError, match=r"batch\.scale"):
        loaded(Batch(torch.ones(2, 3), 2.0), [Batch(torch.ones(3))])


def test_a_dataclass_that_is_returned_is_the_callers(tmp_path: Path) -> None:
    """It is handed back as it is, and one that the model writes to is refused."""

    def renamed(batch: Batch) -> Tensor:
        batch.scale = 2
        return batch.x * 2

    aotpack.build(lambda batch: (batch.x * 2, batch), (Batch(torch.ones(3)),), out=tmp_path / "x", targets=("portable",))
    given = Batch(torch.ones(3))
    assert aotpack.load(tmp_path / "x")(given)[1] is given
    with pytest.raises(UnsupportedError, match=r"batch: a test_containers\.Batch, is changed"):
        aotpack.build(renamed, (given,), out=tmp_path / "x", targets=("portable",))


def test_a_field_that_was_none_is_none_at_every_call(tmp_path: Path) -> None:
    """A registered dataclass has no leaf for it, so a value would be ignored."""
    model = FieldsOf()
    aotpack.build(model, (Maybe(torch.ones(3)),), out=tmp_path / "x", targets=("portable",))
    loaded = aotpack.load(tmp_path / "x")
    torch.testing.assert_close(loaded(Maybe(torch.ones(3))), torch.ones(3))
    torch.testing.assert_close(loaded({"x": torch.ones(3), "mask": None}), torch.ones(3))
    for given in (Maybe(torch.ones(3), torch.ones(3)), {"x": torch.ones(3), "mask": torch.ones(3)}):
        with pytest.raises(InputError, match=r"record\.mask: was None in the example, got a Tensor"):
            loaded(given)


@dataclass
class Maybe:
    x: Tensor
    mask: Any = None


pytree.register_dataclass(Maybe)


class FieldsOf(nn.Module):
    def forward(self, record: Maybe) -> Tensor:
        return record.x if record.mask is None else record.x * record.mask


class Plain:
    def __init__(self) -> None:
        self.alpha = 2.0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Plain(), r"options: is a test_containers\.Plain\n.*attribute of the model"),
        ([1, slice(2)], r"options\[1\]: is a builtins\.slice"),
        (torch.float64, r"options: is a torch\.dtype"),
        (UserDict(x=1), r"options: is a collections\.UserDict\nPass dict\(batch\)"),
    ],
)
def test_an_argument_of_another_type_is_refused(tmp_path: Path, given: Any, words: str) -> None:
    def model(x: Tensor, options: Any) -> Tensor:
        return x * 2

    with pytest.raises(UnsupportedError, match=words):
        aotpack.build(model, (torch.ones(3), given), out=tmp_path / "x", targets=("portable",))
