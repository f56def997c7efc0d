"""The ``aotpack`` command: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aotpack.tools.cli import main
from aotpack.tools.cli.console import size_text, time_text
from aotpack.tools.measure.machine import cpu_model
from aotpack.writer.bundle import BlobStore, TargetEntry, write_bundle
from aotpack_loader.errors import AotpackError, CorruptBundleError, Problem
from aotpack_loader.format import media_types, schema
from aotpack_loader.format.codec import encode
from aotpack_loader.format.versions import FORMAT_VERSION
from devtools import commands

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x, *, scale=None):
        y = self.linear(x)
        return {"loss": (y if scale is None else y * scale).square().mean(), "y": y}

def model():
    return Net()

def example_inputs():
    return (torch.ones(3, 4),), {"scale": torch.full((3, 1), 2.0)}
"""


def invoke(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def document(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.fixture
def model_py(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


# ---------------------------------------------------------------- a bundle by hand, with something of everything


def tensor(*shape: schema.Dim) -> schema.TensorValue:
    return schema.TensorValue("float32", list(shape), [0] * len(shape))


def handmade_graph() -> schema.Graph:
    node = schema.Node("y", "aten.mul.Tensor", [schema.ValueRef("x"), schema.ValueRef("w")], tensor("s0", 4))
    return schema.Graph(["w", "x"], [tensor(4), tensor("s0", 4)], [node], [schema.ValueRef("y")])


def handmade_method(forward: schema.Descriptor) -> schema.Method:
    leaf = schema.LeafNode()
    record = schema.RecordNode("Output", ["y", "extra"], [leaf, schema.ListNode([leaf, leaf])])
    return schema.Method(
        serves=[schema.Mode(training=False, grad=False)],
        inputs=schema.TupleNode(
            [schema.TupleNode([schema.DictNode(["b", "a"], [leaf, leaf])]), schema.DictNode(["flag"], [leaf])]
        ),
        leaves=[
            schema.TensorLeaf("args[0]['b']", "float32", ["s0", 4], requires_grad=True),
            schema.TensorLeaf("args[0]['a']", "int64", []),
            schema.ConstantLeaf("flag", True),
        ],
        outputs=record,
        results=[schema.FreshResult(0, True), schema.InputResult(1), schema.ConstantResult("[not markup]")],
        primals=[schema.ParameterPrimal("w"), schema.InputPrimal(0)],
        forward=forward,
        num_outputs=1,
        symbols=[schema.Symbol("s0", 2, 64, label="batch")],
        constraints=["s0 % 2 == 0"],
        captured_with="dynamo",
        parameters=["state"],
    )


@pytest.fixture
def handmade(tmp_path: Path) -> Path:
    out = tmp_path / "handmade.aotpack"
    with BlobStore(out) as store:
        graph = store.add_compressed(encode(handmade_graph()), media_types.GRAPH)
        weights = store.add_bytes(b"\x02\0\0\0\0\0\0\0{}", media_types.WEIGHTS)
        state = [
            schema.StateEntry("w", "parameter", "float32", [4], [1], "w", requires_grad=True),
            schema.StateEntry("v", "parameter", "float32", [4], [1], "w", tied_to="w"),
            schema.StateEntry("mean", "buffer", "float32", [4], [1], "mean", persistent=False),
        ]
        program = schema.Program(
            FORMAT_VERSION,
            "Handmade",
            schema.Producer("0.1.0", "2.13.0"),
            schema.Requirements(">=2.9", ["mylib"]),
            state,
            {"infer": handmade_method(graph)},
            weights=[weights],
        )
        target = schema.Target("portable", "portable", "cpu")
        write_bundle(out, store, program, [TargetEntry(target, None, [graph, weights])])
    return out


# ---------------------------------------------------------------- the command itself


def test_help_and_inspect_do_not_import_torch(handmade: Path) -> None:
    code = (
        "import sys\n"
        "from aotpack.tools.cli import main\n"
        "for args in (['--help'], ['build', '--help'], ['--version'], ['inspect', sys.argv[1]]):\n"
        "    try:\n"
        "        main(args)\n"
        "    except SystemExit as exit:\n"
        "        assert not exit.code, exit.code\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    process = subprocess.run([sys.executable, "-c", code, str(handmade)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "Handmade" in process.stdout


def test_version_names_both_distributions_and_torch() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == ["aotpack", "aotpack-loader", "torch"]


@pytest.mark.parametrize("args", [["nothing"], ["build", "model.py"], ["inspect"], ["run", "x", "--steps", "0"]])
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    assert invoke(*args).exit_code == 2


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(spec: str) -> None:
        raise error

    monkeypatch.setattr("aotpack.model.entry.check_file", lambda path: None)
    monkeypatch.setattr("aotpack.model.entry.load_entry", fail)


def test_errors_go_to_stderr_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, AotpackError("It broke.", [Problem("args[0]", "[bold]too small[/]")], hint="Mend it."))
    result = invoke("build", "model.py", "-o", "out.aotpack")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.endswith("error: It broke.\n  args[0]: [bold]too small[/]\nMend it.\n")
    assert "Traceback" not in result.stderr


def test_errors_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, CorruptBundleError("It broke.", [Problem("args[0]", "too small")], hint="Mend it."))
    result = invoke("build", "--json", "model.py", "-o", "out.aotpack")
    assert result.exit_code == 1
    assert document(result) == {
        "error": {
            "kind": "CorruptBundleError",
            "message": "It broke.",
            "problems": [{"where": "args[0]", "message": "too small"}],
            "hint": "Mend it.",
        }
    }


def test_verbose_shows_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    error = AotpackError("It broke.")
    error.__cause__ = ZeroDivisionError("deep inside")
    fail_with(monkeypatch, error)
    assert "deep inside" not in invoke("build", "model.py", "-o", "out").stderr
    assert "ZeroDivisionError: deep inside" in invoke("build", "-v", "model.py", "-o", "out").stderr


def test_ctrl_c_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    result = invoke("build", "model.py", "-o", "out.aotpack")
    assert result.exit_code == 130
    assert result.stderr.endswith("Interrupted.\n")


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, AssertionError("bug"))
    assert isinstance(invoke("build", "model.py", "-o", "out.aotpack").exception, AssertionError)


@pytest.mark.parametrize("command", ["inspect", "verify", "run"])
def test_a_missing_bundle(command: str, tmp_path: Path) -> None:
    result = invoke(command, tmp_path / "nothing.aotpack")
    assert result.exit_code == 1
    assert "nothing.aotpack" in result.stderr
    assert "Traceback" not in result.stderr
    assert invoke(command, tmp_path / "nothing.aotpack", "--json").exit_code == 1


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.23 MB")])
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(3.4e-4, "340 µs"), (0.00251, "2.51 ms"), (0.99999, "1.00 s"), (12.71, "12.7 s")])
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


# ---------------------------------------------------------------- inspect


def test_inspect_reads_well(handmade: Path) -> None:
    result = invoke("inspect", "-v", handmade)
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    for expected in (
        "program     Handmade",
        "needs       torch >=2.9, operators of mylib",
        "state       2 parameters, 1 buffer (1 frozen, 1 tied): 8 elements, 10 B",
        "infer  serves eval() without grad",
        "  arguments",
        "  ├── state  dict",
        "  │   ├── 'b'  float32[batch, 4], requires grad",
        "  │   └── 'a'  int64[]",
        "  └── flag  = True (fixed)",
        "  results: Output",
        "  ├── .y  float32[batch, 4], differentiable",
        "  └── .extra  list",
        "      ├── [0]  is args[0]['b']",
        "      └── [1]  = '[not markup]'",
        "  2 <= batch <= 64",
        "  batch % 2 == 0",
        "  captured with dynamo",
    ):
        assert expected in lines
    assert any(line.startswith("portable") and "interpreted" in line for line in lines)
    assert any(line.startswith("graph infer.forward") for line in lines)
    assert any(line.startswith("v ") and line.endswith("tied to w, frozen") for line in lines)


def test_inspect_json_is_complete(handmade: Path) -> None:
    found = document(invoke("inspect", "--json", handmade))
    assert found["digest"].startswith("sha256:")
    assert found["program"]["methods"]["infer"]["symbols"] == [{"name": "s0", "minimum": 2, "maximum": 64, "label": "batch"}]
    assert found["targets"]["portable"]["target"]["kind"] == "portable"
    assert found["size"] == sum(blob["size"] for blob in found["blobs"])


def test_inspect_refuses_what_is_no_bundle(model_py: Path) -> None:
    result = invoke("inspect", model_py)
    assert result.exit_code == 1
    assert str(model_py) in result.stderr


def test_inspect_a_built_bundle(tiny_bundle: Path) -> None:
    result = invoke("inspect", tiny_bundle)
    assert result.exit_code == 0, result.output
    assert "train()" in result.stdout
    assert "portable" in result.stdout


# ---------------------------------------------------------------- verify


def test_verify_without_a_self_test_needs_no_torch_and_passes(handmade: Path) -> None:
    result = invoke("verify", "--json", handmade)
    assert result.exit_code == 0, result.output
    assert [(c["name"], c["status"]) for c in document(result)["checks"]] == [
        ("documents", "ok"),
        ("digests", "ok"),
        ("signature", "skipped"),
        ("self-test", "skipped"),
    ]


def flip_a_byte_of(path: Path, needle: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(needle)] ^= 1
    path.write_bytes(data)


def test_verify_names_a_damaged_blob(handmade: Path) -> None:
    flip_a_byte_of(handmade, b"\x02\0\0\0\0\0\0\0{}")
    result = invoke("verify", handmade)
    assert result.exit_code == 1
    assert "digests" in result.stdout
    assert "failed" in result.stdout
    assert "sha256:" in result.stdout
    assert document(invoke("verify", "--json", handmade))["ok"] is False


def test_verify_a_damaged_document(handmade: Path) -> None:
    flip_a_byte_of(handmade, b'"infer"')
    result = invoke("verify", handmade)
    assert result.exit_code == 1
    assert "documents" in result.stdout


def test_verify_a_built_bundle(tiny_bundle: Path) -> None:
    assert invoke("verify", tiny_bundle).exit_code == 0


# ---------------------------------------------------------------- build and run


def test_build_prints_stages_and_a_summary(model_py: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.aotpack"
    result = invoke("build", model_py, "-o", out, "--target", "portable", "--self-test")
    assert result.exit_code == 0, result.output
    assert str(out) in result.stdout
    assert "sha256:" in result.stdout
    assert "load" in result.stderr
    assert out.is_file()
    verified = document(invoke("verify", "--json", out))
    assert verified["checks"][-1]["name"] == "self-test portable"
    assert verified["checks"][-1]["status"] == "ok", verified


def test_build_json_is_one_document_on_stdout(model_py: Path, tmp_path: Path) -> None:
    result = invoke("build", model_py, "-o", tmp_path / "out.aotpack", "--target", "portable", "--json")
    report = document(result)
    assert report["targets"] == ["portable"]
    assert report["digest"] == document(invoke("inspect", "--json", tmp_path / "out.aotpack"))["digest"]


def test_build_a_directory(model_py: Path, tmp_path: Path) -> None:
    result = invoke("build", model_py, "-o", tmp_path / "out", "--target", "portable", "--directory")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "oci-layout").is_file()
    assert invoke("verify", tmp_path / "out").exit_code == 0


def test_a_failed_build_leaves_nothing_behind(model_py: Path, tmp_path: Path) -> None:
    model_py.write_text(MODEL.replace("return Net()", "return Net(3)"))
    result = invoke("build", model_py, "-o", tmp_path / "out.aotpack")
    assert result.exit_code == 1
    assert "model.py:14, in model: return Net(3)" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


def hear_interrupts() -> None:
    """What a shell runs in the background ignores them, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_nothing_behind(model_py: Path, tmp_path: Path) -> None:
    waiting = "def model():\n    import time; print('waiting', flush=True); time.sleep(60)\n"
    model_py.write_text(MODEL.replace("def model():\n", waiting))
    command = [sys.executable, "-m", "aotpack.tools.cli", "build", "model.py", "-o", "out.aotpack", "--target", "portable"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_interrupts
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.endswith("Interrupted.\n")
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


def test_the_same_input_gives_the_same_bytes(model_py: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = shutil.copy(model_py, tmp_path / "elsewhere" / "model.py")
    for entry, out in ((model_py, "a.aotpack"), (other, "b.aotpack")):
        assert invoke("build", entry, "-o", tmp_path / out, "--target", "portable").exit_code == 0
    assert (tmp_path / "a.aotpack").read_bytes() == (tmp_path / "b.aotpack").read_bytes()


def test_bench_measures_every_target_that_fits(tiny_bundle: Path, tmp_path: Path) -> None:
    page = tmp_path / "bench.html"
    (figures,) = document(invoke("bench", tiny_bundle, "--rounds", 1, "--iterations", 2, "--json", "--html", page))
    assert figures["name"] == "bundle, portable"
    assert figures["start"] >= figures["load"] > 0
    assert figures["step"] > 0
    assert figures["faster"] is None
    assert figures["samples"]["start"] == [figures["start"]]
    assert len(figures["samples"]["step"]) == 2
    text = page.read_text()
    (data,) = re.findall(r'<script type="application/json" id="data-bench">(.*)</script>', text)
    assert json.loads(data)["step"] == {
        "names": ["bundle, portable"],
        "runs": [figures["samples"]["step"]],
        "middle": [figures["step"]],
    }
    for words in (
        "1 round. Each round ran every row once, in turn, in a fresh process with",
        "Step: the median of 2 later steps of a process, forward and backward.",
        cpu_model(),
        f"torch {version('torch')}",
        "1 fresh process,",
    ):
        assert words in text


def test_bench_says_what_was_run_and_what_is_faster(tiny_bundle: Path) -> None:
    from aotpack.tools.cli.bench import compared

    result = invoke("bench", tiny_bundle, "--rounds", 1, "--iterations", 2, "--threads", 1)
    said = " ".join(result.stdout.split())
    assert "1 round. Each round ran every row once, in turn, in a fresh process with 1 thread. Start: from after" in said
    assert "Step: the median of 2 later steps of a process, forward and backward." in said
    words = {0.01: "100 times as fast", 0.87: "13 % less time (faster)", 1.001: "the same", 1.2: "20 % more time (slower)"}
    assert {ratio: compared(ratio) for ratio in words} == words
    assert compared(3) == "3 times as long (slower)"


@pytest.mark.parametrize("module", ["aotpack", "aotpack.tools.cli"])
def test_the_command_is_a_module_too(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: aotpack [OPTIONS]")


def test_a_command_ends_without_collections() -> None:
    """A handler that is registered earlier runs later, so it sees what the command's own handler did."""
    code = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count()))"
    code += "; from aotpack.tools.cli import main; main(['list', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) > 1000


def test_bench_says_why_a_process_failed(tmp_path: Path, tiny_bundle: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("import torch\ndef example_inputs(): return (torch.ones(3),)\ndef model(): return lambda x: 1 / 0\n")
    result = invoke("bench", tiny_bundle, "--model", source, "--rounds", 1, "--iterations", 1)
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr


def test_run_shows_a_step(tiny_bundle: Path) -> None:
    result = invoke("run", tiny_bundle)
    assert result.exit_code == 0, result.output
    for word in ("backend", "portable", "loss", "gradient", "load", "first step"):
        assert word in result.stdout


def test_run_trains(tiny_bundle: Path) -> None:
    report = document(invoke("run", tiny_bundle, "--steps", 3, "--json", "--backend", "portable"))
    assert report["backend"] == "portable"
    assert len(report["losses"]) == 3
    assert report["gradient_norm"] > 0
    again = document(invoke("run", tiny_bundle, "--steps", 3, "--json", "--backend", "portable"))
    assert again["losses"] == report["losses"]


def test_run_an_absent_backend(tiny_bundle: Path) -> None:
    result = invoke("run", tiny_bundle, "--backend", "xla")
    assert result.exit_code == 1
    assert "xla" in result.stderr


@pytest.mark.parametrize(("options", "trust"), [([], None), (["all"], "all"), (["a", "b"], ("a", "b"))])
def test_trust_option(
    monkeypatch: pytest.MonkeyPatch, handmade: Path, options: list[str], trust: str | tuple[str, ...] | None
) -> None:
    seen: list[object] = []

    def load(path: Path, **options: object) -> None:
        seen.append(options["trust"])
        raise AotpackError("enough")

    monkeypatch.setattr("aotpack.load", load, raising=False)
    invoke("run", handmade, *(part for option in options for part in ("--trust", option)))
    assert seen == [trust]


def test_the_page_of_commands_is_current() -> None:
    assert commands.PAGE.read_text() == commands.page(), "run: python -m devtools.commands"
