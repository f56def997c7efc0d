"""The frozen vectors under spec/vectors: every one is replayed, and every numbered rule of the spec has one or a test.

Tests enumerate the folders, so a new vector is covered by being there. Never change one: add another.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import aotpack_loader
from aotpack_loader import errors, trust
from aotpack_loader.archive import compression
from aotpack_loader.archive.bundle import Bundle, raw_size
from aotpack_loader.format import expressions, media_types, schema
from aotpack_loader.format.codec import decode, encode
from aotpack_loader.format.validate import validate_program
from aotpack_loader.format.validate_graph import validate_graph
from devtools.spec.replay import BUNDLE, EXPECT, observe, replay_invalid, replay_valid
from devtools.spec.signed import replay_signed

ROOT = Path(__file__).resolve().parent.parent

VECTORS = ROOT / "spec/vectors/v1"
LIMIT = 4_790_000
VALID = sorted((VECTORS / "valid").iterdir())
INVALID = sorted((VECTORS / "invalid").iterdir())


def load(name: str, **options: Any) -> aotpack_loader.LoadedProgram:
    return aotpack_loader.load(VECTORS / "valid" / name / BUNDLE, backend="portable", **options)


# ---------------------------------------------------------------- replay


@pytest.mark.parametrize("folder", VALID, ids=lambda folder: folder.name)
def test_valid(folder: Path) -> None:
    assert replay_valid(folder) > 0


@pytest.mark.parametrize("folder", INVALID, ids=lambda folder: folder.name)
def test_invalid(folder: Path) -> None:
    replay_invalid(folder)


FRESH = """
import runpy, sys
for name in ("aotpack", "torch._inductor"):
    sys.modules[name] = None  # importing it is an error
runpy.run_module("devtools.spec.replay", run_name="__main__", alter_sys=True)
"""


def test_in_a_fresh_process_without_the_compiler() -> None:
    arguments = [str(VECTORS / "valid/nested_kwargs"), str(VECTORS / "invalid/no_methods")]
    done = subprocess.run(
        [sys.executable, "-c", FRESH, *arguments], capture_output=True, text=True, timeout=120, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tensors agree" in done.stdout


def test_flipped_weights_are_found_only_when_all_is_verified() -> None:
    path = VECTORS / "invalid/flipped_weights" / BUNDLE
    aotpack_loader.load(path, backend="portable")
    with pytest.raises(errors.CorruptBundleError):
        aotpack_loader.load(path, backend="portable", verify="full")


def test_flipped_integers_are_found_without_verifying_all() -> None:
    with pytest.raises(errors.CorruptBundleError, match="its content has digest"):
        aotpack_loader.load(VECTORS / "invalid/flipped_integer" / BUNDLE, backend="portable")


@pytest.mark.parametrize("folder", sorted((VECTORS / "signed").iterdir()), ids=lambda folder: folder.name)
def test_signed(folder: Path) -> None:
    replay_signed(folder)


def test_vectors_stay_small() -> None:
    total = sum(file.stat().st_size for file in VECTORS.rglob("*") if file.is_file())
    assert total < LIMIT


def test_vectors_are_in_the_repository() -> None:
    names = {folder / file for folder in (*VALID, *INVALID) for file in (BUNDLE, EXPECT)}
    assert all(path.exists() for path in names)
    done = subprocess.run(["git", "check-ignore", *map(str, names)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""  # *.aotpack is ignored elsewhere


# ---------------------------------------------------------------- calls that are refused before anything runs


def _call(name: str, change: Callable[[list[torch.Tensor]], list[Any]], **kwargs: Any) -> None:
    given = {
        "mlp": [torch.randn(5, 6), torch.zeros(5, dtype=torch.int64)],
        "dynamic_batch": [torch.randn(5, 6), torch.zeros(5, dtype=torch.int64)],
    }
    load(name)(*change(given[name]), **kwargs)


@pytest.mark.parametrize(
    ("rule", "name", "change", "kwargs"),
    [
        ("A3", "mlp", lambda g: [g[0]], {}),
        ("A3", "mlp", lambda g: [*g, g[0]], {}),
        ("A3", "mlp", lambda g: g, {"z": 1}),
        ("A4", "mlp", lambda g: [g[0].double(), g[1]], {}),
        ("A4", "mlp", lambda g: [g[0][:, :5], g[1]], {}),
        ("A4", "mlp", lambda g: [g[0].tolist(), g[1]], {}),
        ("A5", "dynamic_batch", lambda g: [g[0].new_zeros(65, 6), g[1].new_zeros(65)], {}),
        ("A5", "dynamic_batch", lambda g: [g[0], g[1][:4]], {}),
        ("A6", "mlp", lambda g: [g[0].requires_grad_(), g[1]], {}),
    ],
)
def test_refused_before_running(
    rule: str, name: str, change: Callable[[list[torch.Tensor]], list[Any]], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(errors.InputError):
        _call(name, change, **kwargs)


def test_a3_arguments_may_be_passed_by_name() -> None:
    x, y = torch.randn(5, 6), torch.zeros(5, dtype=torch.int64)
    model = load("mlp")
    assert torch.equal(model(x, y), model(y=y, x=x))


def test_a7_constants_and_a8_shared_memory() -> None:
    model = load("nested_kwargs")
    x, carry = torch.randn(5, 3), torch.zeros(3)
    batch = {"x": x, "parts": [torch.zeros(3), torch.zeros(2, 4)], "count": 5}
    with pytest.raises(errors.InputError, match=r"built for 0\.5"):  # A7
        model(batch, scale=0.25, carry=carry)
    with pytest.raises(errors.InputError, match="share memory"):  # A8
        model(batch | {"parts": [carry, torch.zeros(2, 4)]}, scale=0.5, carry=carry)
    assert carry.eq(0).all()


@pytest.mark.filterwarnings("ignore::aotpack_loader.runtime.inputs.LayoutWarning")
def test_a4_strides_are_made_to_fit() -> None:
    model = load("mlp").eval()
    x, y = torch.randn(5, 6), torch.zeros(5, dtype=torch.int64)
    with torch.no_grad():
        assert torch.equal(model(x, y), model(x.t().contiguous().t(), y))


# ---------------------------------------------------------------- autograd


def test_r2_a_missing_tangent_counts_as_zeros() -> None:
    method = load("several_outputs").aotpack.program.methods["train"]
    model, x = load("several_outputs"), torch.randn(3, 4, requires_grad=True)
    assert method.backward is not None
    assert len(method.backward.tangents) > 1
    _, (low, _), _, _, _ = model(x)
    low.sum().backward()
    weight = model.get_parameter("weight").detach().clone().requires_grad_()
    fresh = x.detach().clone().requires_grad_()
    torch.relu(fresh @ weight)[:, :2].sum().backward()
    torch.testing.assert_close(model.get_parameter("weight").grad, weight.grad)
    torch.testing.assert_close(x.grad, fresh.grad)


def test_r3_a_saved_tensor_that_was_changed_is_noticed() -> None:
    model, x = load("scale"), torch.randn(4, requires_grad=True)
    result = model(x)
    with torch.no_grad():
        model.get_parameter("scale").mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_r4_a_second_backward_needs_the_graph_kept() -> None:
    model, x = load("scale"), torch.randn(4, requires_grad=True)
    result = model(x).sum()
    result.backward(retain_graph=True)
    result.backward()
    torch.testing.assert_close(x.grad, 2 * model.get_parameter("scale"))
    with pytest.raises(RuntimeError, match="second time"):
        result.backward()


def test_r5_a_second_derivative_is_refused() -> None:
    model, x = load("scale"), torch.randn(4, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(errors.AutogradError):
        gradient.sum().backward()


def test_r6_a_mode_without_a_method_is_refused() -> None:
    model = load("scale").eval()
    with pytest.raises(errors.ModeError):
        model(torch.randn(4))
    with torch.no_grad():
        model(torch.randn(4))


def test_r7_the_replayed_step_is_the_one_of_the_mode() -> None:
    model = load("batchnorm")
    method = model.aotpack.program.methods["infer"]
    before = model.get_buffer("norm.running_mean").clone()
    observe(model, method, (torch.randn(3, 2, 4, 4),), {}, training=False, grad=False)
    assert torch.equal(before, model.get_buffer("norm.running_mean"))


# ---------------------------------------------------------------- rules that no bundle can show


def test_d6_compiled_code_states_the_digest_of_its_raw_bytes() -> None:
    descriptor = schema.Descriptor(media_types.CODE_AOTI, "sha256:" + "0" * 64, 4, {media_types.ANNOTATION_RAW_SIZE: "4"})
    with Bundle.open(VALID[0] / BUNDLE) as bundle, pytest.raises(errors.CorruptBundleError, match="raw-digest"):
        bundle.code(descriptor)


def test_d5_a_blob_cannot_claim_more_than_zstandard_can_give() -> None:
    data = compression.compress(b"abc")
    with pytest.raises(errors.CorruptBundleError, match="cannot hold"):
        compression.decompress(data, 1 << 30)
    with pytest.raises(errors.CorruptBundleError):
        raw_size(schema.Descriptor(media_types.GRAPH, "sha256:" + "0" * 64, 4, {media_types.ANNOTATION_RAW_SIZE: "+3"}))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-7 // 2", -4), ("-7 % 2", 1), ("7 // -2", -4), ("7 % -2", -1), ("2 - -3 * - -2", 8), ("2 + 3 * 4", 14),
        ("10 - 4 - 3", 3), ("100 // 7 // 2", 7), ("max(1, n, 3)", 5), ("min(n, 2) == 2 and n > 4", 1),
        ("not n == 5 or n", 1), ("n == 5", 1), ("(n)", 5), ("trunc(1.7 * float(n * 2))", 17),
        ("trunc(-1.5)", -1), ("trunc(sqrt(n * 5.0))", 5), ("trunc(1.0 / pow(float(n - 1), -0.5))", 2),
        ("floor(-1.5)", -2), ("ceil(n / 2)", 3), ("round(n / 2)", 2), ("n / 2 <= 2.5", 1), ("n / 2 - 2.5 < 0.0", 0),
        ("n * 0.1 == 0.5 and trunc(0.7 * 3.0 * 10.0) == 20", 1), ("1 / 3 * 3 == 1", 1), ("trunc(10 * 0.000000000000000001)", 0),
    ],
)  # fmt: skip
def test_e1_values(text: str, value: int) -> None:
    assert expressions.evaluate(text, {"n": 5}) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 < 2 < 3",
        "n()",
        "max()",
        "trunc(pow(1.0))",
        "trunc(1.0, 2.0)",
        "1e5",
        ".5",
        "1.",
        "trunc()",
        "n.real",
        "n[0]",
        "a ** 2",
        "not not n",
        "0x10",
        "+1",
    ],
)
def test_e1_refused(text: str) -> None:
    with pytest.raises(errors.CorruptBundleError):
        expressions.parse(text)


@pytest.mark.parametrize(
    "text",
    ["1.5", "n / 2", "-n / 2", "2 * float(n)", "4 / 2 // 2", "2 // 1.0", "5.0 % 2", "1.0 and 1", "n or 0.0", "not 1.0",
     "max(1.0, n)", "float(1.5)", "trunc(n)", "sqrt(n)", "pow(n, 0.5)", "trunc(pow(2.0, n))", "sqrt(2.0)",
     "ceil(1)", "round(n // 2)", "n == 5 and n / 5"],
)  # fmt: skip
def test_e4_a_real_number_where_an_integer_is_needed(text: str) -> None:
    with pytest.raises(errors.CorruptBundleError, match=r"is a real number|is an integer already"):
        expressions.parse(text)


@pytest.mark.parametrize("text", ["1" * 20_001, "1." + "0" * 399, "(" * 101 + "1" + ")" * 101])
def test_e2_limits(text: str) -> None:
    with pytest.raises(errors.CorruptBundleError):
        expressions.parse(text)


HUGE_REAL = "1" + "0" * 300 + ".0 * 1" + "0" * 300 + ".0"  # infinite
HUGE = f"trunc({HUGE_REAL})"


@pytest.mark.parametrize(
    "text",
    [
        "n // 0",
        "n % 0",
        "m",
        "trunc(n / 0)",
        "trunc(1.0 / 0.0)",
        "trunc(sqrt(-1.0))",
        "trunc(pow(-1.0, 0.5))",
        HUGE,
        f"trunc({HUGE_REAL} - {HUGE_REAL})",
    ],
)
def test_e3_what_has_no_value_is_refused(text: str) -> None:
    with pytest.raises(errors.CorruptBundleError):
        expressions.evaluate(text, {"n": 5})


def test_a9_autocast_must_be_as_it_was() -> None:
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(errors.ModeError, match="autocast"):
        load("mlp")(torch.randn(5, 6), torch.zeros(5, dtype=torch.int64))


def test_v3_an_unknown_optional_property_is_ignored() -> None:
    with Bundle.open(VALID[0] / BUNDLE) as bundle:
        program = bundle.program
    text = encode(program).replace(b'"format":{', b'"later":[{"type":"x"}],"format":{"patch":7,', 1)
    assert decode(text, schema.Program, where="program") == program


def test_s1_opening_runs_and_writes_nothing() -> None:
    for folder in (*VALID, *INVALID):  # what is imported lazily is imported now
        with contextlib.suppress(errors.AotpackError):
            _open_and_read(folder)
    seen: list[tuple[str, Any]] = []
    watching = True

    def watch(event: str, arguments: Any) -> None:
        if watching:
            seen.append((event, arguments))

    sys.addaudithook(watch)
    for folder in VALID:
        _open_and_read(folder)
    for folder in INVALID:
        with contextlib.suppress(errors.AotpackError):
            _open_and_read(folder)
    watching = False
    harmless = {"open", "mmap.__new__", "object.__getattr__", "builtins.id", "os.listdir", "os.scandir"}
    assert {event for event, _ in seen} <= harmless
    opened = [arguments for event, arguments in seen if event == "open"]
    assert opened
    assert not any(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) for _, _, flags in opened)


def _open_and_read(folder: Path) -> None:
    with Bundle.open(folder / BUNDLE) as bundle:
        bundle.verify()
        for method in bundle.program.methods.values():
            bundle.graph(method.forward)


def test_s2_damaged_bundles_allocate_little() -> None:
    tracemalloc.start()
    try:
        for folder in INVALID:
            if folder.name == "many_items":
                continue  # its graph truly has 12 MB: test_hostile_bundles.py bounds what refusing it takes
            with contextlib.suppress(errors.AotpackError):
                _open_and_read(folder)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_s3_native_code_needs_a_reason() -> None:
    here, other = "sha256:" + "0" * 64, "sha256:" + "1" * 64
    assert not trust.decide_trust(here, None).trusted
    assert not trust.decide_trust(here, other).trusted
    assert trust.decide_trust(here, [other, here]).trusted
    assert trust.decide_trust(here, trust.ALL).trusted


def test_valid_documents_hold_c_and_g_rules() -> None:
    for folder in VALID:
        with Bundle.open(folder / BUNDLE) as bundle:
            validate_program(bundle.program, folder.name)
            for method in bundle.program.methods.values():
                validate_graph(bundle.graph(method.forward), folder.name)


def test_every_numbered_rule_has_a_vector_or_a_test() -> None:
    prose = "\n".join(path.read_text() for path in (ROOT / "spec").glob("*.md"))
    rules = set(re.findall(r"\*\*\(([A-Z]\d+)\)\*\*", prose))
    assert {f"C{i}" for i in range(1, 15)} | {f"G{i}" for i in range(1, 5)} <= rules
    covered = {match for folder in (*VALID, *INVALID) for match in re.findall(r'"([A-Z]\d+)"', (folder / EXPECT).read_text())}
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.rglob("*.py"))
    covered |= {rule for rule in rules if re.search(rf'"{rule}"|# (?:[A-Z]\d+, )*{rule}\b|test_(?:\w+_)?{rule.lower()}_', tests)}
    assert rules - covered == set()
    assert covered - rules == set()  # a vector cites a rule that the spec has not
