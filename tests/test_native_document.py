"""The document of a native call: that it has everything, that native code reads all of it, and who holds it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
import torch
from torch import nn

import aotpack
from aotpack_loader.format import native_call, schema
from aotpack_loader.module.program import LoadedProgram
from aotpack_loader.runtime.native import opened_codes
from aotpack_loader.runtime.native_document import describe
from devtools.native_calls import library, load_native
from devtools.paths import ROOT

PARTS = [
    kind
    for kind in vars(native_call).values()
    if isinstance(kind, type) and issubclass(kind, native_call.Part) and kind is not native_call.Part
]
SHIFT = torch.arange(4.0)


class Much(nn.Module):
    """A document with something of almost everything: what it lacks is in :func:`whole`."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor, flag: bool, ratio: float) -> tuple[Any, ...]:
        self.count.add_(x.detach().sum())
        hidden = torch.tanh(self.last(torch.tanh(self.first(x)))) * ratio + SHIFT
        loss = hidden.square().sum()
        return loss, hidden, x.shape[0] + 1, x, "text", hidden.repeat(2, 1), flag


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedProgram:
    out = tmp_path_factory.mktemp("native") / "m"
    torch.manual_seed(0)
    aotpack.build(
        Much(),
        (torch.rand(3, 4, requires_grad=True), True, 0.5),
        out=out,
        targets=("portable",),
        dynamic_shapes=({0: torch.export.Dim("rows", min=2, max=8)}, None, None),
    )
    found = load_native(out)
    assert found.aotpack.calls == {"train": "native", "infer": "native"}
    return found


@pytest.fixture(scope="module")
def whole(loaded: LoadedProgram) -> Any:
    """The document of its training, as JSON. Its graphs are functions of Python."""
    return json.loads(native_call.encode(describe(loaded._aotpack_calls[True, True])))


def read_and_make(loaded: LoadedProgram, document: Any) -> object:
    call = loaded._aotpack_calls[True, True]
    found = library().read(json.dumps(document))
    names = {"rows": 3, **dict.fromkeys(found.symbols, 3), **dict.fromkeys(found.expressions, 4)}
    constants = [call.constants[name] for name in describe(call).constants]
    return found.make(opened_codes(call), constants, names)


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """All objects in a document, with the way to each."""
    if isinstance(value, dict):
        yield path, value
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from objects(item, (*path, key))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def test_native_code_reads_every_field_and_no_other(loaded: LoadedProgram, whole: Any) -> None:
    """Without any one of its fields, or with one more, no object of a document is read."""
    assert read_and_make(loaded, whole) is not None
    tried = 0
    for path, found in objects(whole):
        for name in found:
            changed = copy.deepcopy(whole)
            del at(changed, path)[name]
            with pytest.raises(ValueError, match=rf"the field {name} is missing"):
                read_and_make(loaded, changed)
            tried += 1
        changed = copy.deepcopy(whole)
        at(changed, path)["unheard_of"] = 1
        with pytest.raises(ValueError, match="the field unheard_of is unknown"):
            read_and_make(loaded, changed)
    assert tried > 100


def test_this_document_has_something_of_everything(whole: Any) -> None:
    """Of all types and fields but those that only compiled code has: no list is empty, so that all of them are read above."""
    whole = native_call.decode(json.dumps(whole))
    seen: set[type] = set()
    empty: set[str] = set()
    filled: set[str] = set()

    def walk(value: Any) -> None:
        for item in value if isinstance(value, (list, tuple)) else ():
            walk(item)
        if isinstance(value, native_call.Part):
            seen.add(type(value))
            for field in value.__struct_fields__:
                held = getattr(value, field)
                (empty if held in ([], None) else filled).add(f"{type(value).__name__}.{field}")
                walk(held)

    walk(whole)
    assert set(PARTS) - seen == {native_call.Code, native_call.Sequence, native_call.SequenceCall}
    assert empty - filled <= {
        "NativeCall.constraints", "NativeCall.must_not_overlap", "NativeCall.written_leaves", "NativeCall.touched",
        "Differentiable.donated", "Differentiable.non_differentiable", "NativeCall.detached_outputs", "Differentiable.depends",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        ("leaves", [{"type": "nothing"}]),
        ("nondeterministic", 1),
        ("primals", [-1]),
        ("primals", [1.5]),
        ("ties", [["one"]]),
        ("constants", "c"),
        ("forward", {"type": "function", "name": "not there"}),
        ("results", [{"type": "size", "size": "unknown"}]),
    ],
)
def test_what_is_no_document_is_refused(loaded: LoadedProgram, whole: Any, change: tuple[str, Any]) -> None:
    name, value = change
    with pytest.raises(ValueError, match=r"expected|unknown type|is missing|there is no code|no size is given"):
        read_and_make(loaded, {**whole, name: value})


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"a" 1}', '"\\ud800"', "nul", "1.", "[" * 100, '"a\nb"', "{} {}"])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no JSON at byte"):
        library().read(text)


VALUES = [None, True, -3, 2**70, 0.5, float("inf"), 1 - 2j, 'a"\\\n\tä€𝄞', torch.float32, torch.strided, torch.channels_last]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_constants_arrive_as_they_are(value: Any, loaded: LoadedProgram, whole: Any) -> None:
    """Native code makes the same objects of constants as Python."""
    constant: Any = value
    if isinstance(value, float):
        constant = schema.FloatArg(value if value != float("inf") else "inf")
    elif isinstance(value, complex):
        constant = schema.ComplexArg(value.real, value.imag)
    elif isinstance(value, torch.dtype):
        constant = schema.DTypeArg("float32")
    elif isinstance(value, torch.layout):
        constant = schema.LayoutArg("strided")
    elif isinstance(value, torch.memory_format):
        constant = schema.MemoryFormatArg("channels_last")
    call = loaded._aotpack_calls[True, True]
    document = describe(call)
    document = msgspec.structs.replace(document, results=[native_call.ConstantResult(constant)])
    read = library().read(native_call.encode(document))
    names = {**dict.fromkeys(read.symbols, 3), **dict.fromkeys(read.expressions, 4)}
    native = read.make(opened_codes(call), [call.constants[name] for name in document.constants], names)
    results = native([torch.rand(3, 4, requires_grad=True), True, 0.5], loaded._aotpack_slots)
    assert results is not None
    (found,) = results
    assert type(found) is type(value)
    assert found == value


def test_sizes_have_names_that_the_writer_knows() -> None:
    """The writer finds expressions in the fields ``size``, ``shape`` and ``stride``: no others hold sizes."""
    with_sizes = {
        field
        for kind in PARTS
        for field, hint in get_type_hints(kind).items()
        for part in [hint, *get_args(hint)]
        if schema.Dim in (part, *get_args(part))
    }
    assert with_sizes == {"size", "shape", "stride"}


def test_the_page_describes_every_field_and_kind() -> None:
    page = (ROOT / "spec/native-call.md").read_text()
    fields = {field for kind in PARTS for field in kind.__struct_fields__}
    assert {field for field in fields if f"**`{field}`**" not in page} == set()
    tags = {kind.__struct_config__.tag for kind in PARTS} - {None}
    assert {tag for tag in tags if f"`{tag}`" not in page} == set()


def test_a_record_holds_the_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else of a call that native code reads."""
    monkeypatch.setenv("AOTPACK_RECORDED_STARTS", "1")
    out = tmp_path / "m"
    aotpack.build(nn.Linear(4, 3), (torch.randn(5, 4),), out=out, targets=("cpu",))
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "cache"))
    model = aotpack.load(out, backend="cpu")
    (path,) = (tmp_path / "cache" / "starts").iterdir()
    record = json.loads(path.read_bytes().partition(b"\n")[2])
    for name, method in record["methods"].items():
        (call,) = {id(c): c for c in model._aotpack_calls.values() if c.name == name}.values()
        assert native_call.decode(method["document"]) == describe(call)
        assert method.keys() == {"document", "constants", "flags", "count", "keys", "result"}
        assert record["code"]["executables"].keys() >= {f"{name}.forward"}
