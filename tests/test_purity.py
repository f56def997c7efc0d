"""What must not happen in a process that only loads: no compiler imported, nothing evaluated, nothing unpickled."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import IMPORTED_BY_TORCH, ROOT, FreshProcess
from torch.nn import functional as F

import aotpack
import aotpack_loader
from aotpack._torch.api.process_copy import in_place
from aotpack._torch.inductor import layouts, lowering
from aotpack._torch.inductor.toolchain import commands
from aotpack.targets.cpu import CpuTarget, target

FORBIDDEN = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.export", "torch.fx", "sympy", "triton", "aotpack")

STEP = """
import builtins, json, sys
import torch
before = set(sys.modules)
import aotpack_loader
import pickle, marshal
for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (marshal, "loads"), (torch, "load")):
    def refuse(*args, what=name, **options):
        sys.exit(f"{what} was called")
    if module is not marshal:  # the import system's own
        setattr(module, name, refuse)
for path, backend in zip(sys.argv[1::2], sys.argv[2::2]):
    model = aotpack_loader.load(path, backend=backend)
    images, labels = torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3])
    model(images, labels)["loss"].backward()
    model.eval()
    with torch.no_grad():
        model(images, labels)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize(("bundle", "backend"), [("digits_bundle", "cpu"), ("portable_digits_bundle", "portable")])
def test_loading_and_a_step_import_no_compiler(
    request: pytest.FixtureRequest, fresh_process: FreshProcess, bundle: str, backend: str
) -> None:
    added = fresh_process(STEP, request.getfixturevalue(bundle), backend, from_nothing=True)
    heavy = [name for name in added if name in FORBIDDEN or name.startswith(tuple(f"{prefix}." for prefix in FORBIDDEN))]
    assert set(heavy) <= IMPORTED_BY_TORCH


START = frozenset({
    "", "_process", "_torch_compat", "errors", "loading", "options", "text", "trust", "value",
    "module", "module.edits", "module.frozen", "module.info", "module.original_class", "module.outline", "module.program",
    "module.submodules", "opening", "opening.documents", "opening.from_record", "opening.own_class", "opening.record_files",
    "opening.recording",
    "archive", "archive.bundle", "archive.cache", "archive.checked", "archive.digest", "archive.layout", "archive.manifests",
    "archive.private", "archive.tar", "archive.weights",
    "devices", "devices.aoti", "devices.backends", "devices.base", "devices.call_library", "devices.call_sizes",
    "devices.cpuinfo", "devices.literals", "devices.packages", "devices.select",
    "format", "format.codec", "format.containers", "format.donations", "format.expressions", "format.features",
    "format.interface", "format.media_types", "format.modules", "format.native_call", "format.schema", "format.subclasses",
    "format.traits", "format.types", "format.types.arguments", "format.types.documents", "format.types.graphs",
    "format.types.methods", "format.types.programs", "format.types.targets", "format.validate", "format.validate_expressions",
    "format.validate_target", "format.versions",
    "runtime", "runtime.arguments", "runtime.autograd", "runtime.backward_inputs", "runtime.call", "runtime.epilogue",
    "runtime.identity", "runtime.inputs", "runtime.loaded_method", "runtime.memory", "runtime.modes", "runtime.mutations",
    "runtime.names", "runtime.native", "runtime.native_document", "runtime.result_sources", "runtime.state", "runtime.tree",
    "runtime.views",
})  # fmt: skip
"""Modules of the loader that a start of native code imports if it uses no record (tests/test_recorded_start.py). Each costs 0.1
to 0.4 ms there: what only some bundles need is imported where one needs it."""

FIRST_STEP = """
import json, sys
import torch
before = set(sys.modules)
from aotpack_loader import load
load(sys.argv[1], backend="cpu")(torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3]))["loss"].backward()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_a_start_imports_what_it_needs(digits_bundle: Path, fresh_process: FreshProcess) -> None:
    load_once = fresh_process(FIRST_STEP, digits_bundle, from_nothing=True)  # code that is in the cache is not decompressed again
    assert "aotpack_loader.archive.cache" in load_once
    added = fresh_process(FIRST_STEP, digits_bundle, from_nothing=True)
    own = {name.removeprefix("aotpack_loader").removeprefix(".") for name in added if name.startswith("aotpack_loader")}
    assert own == START
    others = {name.partition(".")[0] for name in {*added} - IMPORTED_BY_TORCH if not name.startswith("aotpack_loader")}
    assert others <= {"msgspec", "decimal", "_decimal"}  # msgspec imports decimal


def attend(x: torch.Tensor) -> torch.Tensor:
    """What Inductor's decompositions make operators of Inductor's own from: softmax, pooling, ranges, casts."""
    scores = (x @ x.transpose(1, 2)).softmax(-1) + F.log_softmax(x @ x.transpose(1, 2), -1)
    positions = torch.arange(x.shape[1], device=x.device).to(x.dtype)
    pooled = F.max_pool2d(x.unsqueeze(1), 2)
    return (scores @ x * positions[:, None]).double().sum() + pooled.square().sum() + F.layer_norm(x, x.shape[-1:]).var()


class NoCode(commands.Library):
    """A library that nothing compiles; it would have ``outputs`` outputs."""

    def __init__(self, output: Path, outputs: int) -> None:
        super().__init__(output)
        self.layouts = [layouts.OutputLayout([], own=False)] * outputs

    def start(self, *_: Any, **__: Any) -> None:
        pass

    def finish(self) -> None:
        self.output.parent.mkdir(exist_ok=True)
        self.output.write_bytes(b"not code")


def test_portable_graphs_beside_native_code_need_no_compiler(
    tmp_path: Path, fresh_process: FreshProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle's graphs are traced for its native target, and still every torch can run them."""

    def lower(targets: Sequence[CpuTarget], graph: lowering.GraphToLower, folder: Path) -> list[NoCode]:
        (outputs,) = graph.module.graph.output_node().args
        return [NoCode(folder / "code.so", len(outputs)) for _ in targets]

    monkeypatch.setattr(target, "_lower", lower)
    monkeypatch.setattr(commands, "imports_from_torch", lambda library: [])
    example = torch.zeros(2, 4, 4, requires_grad=True)
    with in_place():
        aotpack.build(attend, (example,), out=tmp_path / "m", targets=("cpu", "portable"), methods=("train",), cache=False)
    code = """
        import json, sys
        import torch
        before = set(sys.modules)
        import aotpack_loader
        x = torch.arange(32.0).reshape(2, 4, 4).div(16).sin().requires_grad_()
        torch.manual_seed(0)
        out = aotpack_loader.load(sys.argv[1], backend="portable")(x)
        out.backward()
        print(json.dumps([sorted(set(sys.modules) - before), out.item(), x.grad.tolist()]))
    """
    added, value, gradient = fresh_process(code, tmp_path / "m", from_nothing=True)
    assert [name for name in added if name.startswith(FORBIDDEN[:-1]) and name not in IMPORTED_BY_TORCH] == []
    x = torch.arange(32.0).reshape(2, 4, 4).div(16).sin().requires_grad_()
    torch.manual_seed(0)
    expected = attend(x)
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(torch.tensor(gradient), x.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("package", ["aotpack", "aotpack_loader"])
def test_importing_imports_no_torch(fresh_process: FreshProcess, package: str) -> None:
    added = fresh_process(
        f"import json, sys, {package}; dir({package}); print(json.dumps(sorted(sys.modules)))", from_nothing=True
    )
    assert package in added
    assert "torch" not in added
    assert "numpy" not in added


def test_reading_documents_imports_no_torch(tiny_bundle: Path, fresh_process: FreshProcess) -> None:
    code = """
        import json, sys
        from aotpack_loader.archive.bundle import Bundle
        with Bundle.open(sys.argv[1]) as bundle:
            bundle.verify()
            for method in bundle.program.methods.values():
                bundle.graph(method.forward)
        print(json.dumps(sorted(sys.modules)))
    """
    assert "torch" not in fresh_process(code, tiny_bundle, from_nothing=True)


def test_examples_and_tests_are_out_of_a_fresh_process_reach(fresh_process: FreshProcess) -> None:
    code = """
        import importlib.util, json
        names = ("model", "examples", "tests", "conftest", "support")
        print(json.dumps([name for name in names if importlib.util.find_spec(name)]))
    """
    assert fresh_process(code, from_nothing=True) == []


SOURCES = sorted(Path(aotpack_loader.__file__).parent.rglob("*.py"))
FOREIGN = {"_process", "_symbols", "exchange"}
"""The modules that use ctypes: mallopt and renameat2 of the C library, and which names torch's own library exports."""
HELPERS = {"credentials"}
"""The module that runs the credential helpers which the user's own Docker configuration names."""
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
BANNED_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "ctypes", "runpy", "subprocess"}
BANNED_ATTRIBUTES = {("torch", "load"), ("torch", "compile"), ("os", "system"), ("torch", "jit"), ("torch", "package")}


def test_the_loaders_sources_are_all_there() -> None:
    assert len(SOURCES) > 25
    assert SOURCES[0].resolve().is_relative_to(ROOT / "loader")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_the_loader_evaluates_and_unpickles_nothing(path: Path) -> None:
    banned_modules = BANNED_MODULES - ({"ctypes"} if path.stem in FOREIGN else set())
    banned_modules -= {"subprocess"} if path.stem in HELPERS else set()
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            found.append(f"{node.lineno}: {node.func.id}()")
        elif isinstance(node, ast.Import):
            found += [f"{node.lineno}: import {a.name}" for a in node.names if a.name.partition(".")[0] in banned_modules]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in banned_modules:
            found.append(f"{node.lineno}: from {node.module}")
        elif isinstance(node, ast.Attribute) and (getattr(node.value, "id", ""), node.attr) in BANNED_ATTRIBUTES:
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    assert found == []
