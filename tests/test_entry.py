"""``aotpack.model.entry``: model.py in, model and example inputs out; the user's own line when it is wrong."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aotpack.model.entry import Entry, load_entry, split_spec
from aotpack_loader.errors import AotpackError, EntryError

Write = Callable[..., Path]

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.linear = torch.nn.Linear(4, width)

    def forward(self, x, y=None):
        return self.linear(x)
"""
INPUTS = """
def example_inputs():
    return (torch.ones(2, 4),)
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write model.py from pieces of source; the working directory is where it lies."""
    monkeypatch.chdir(tmp_path)

    def write(*pieces: str, name: str = "model.py") -> Path:
        path = tmp_path / name
        path.write_text("".join(textwrap.dedent(piece) for piece in pieces))
        return path

    return write


def failure(spec: object) -> EntryError:
    with pytest.raises(EntryError) as caught:
        load_entry(str(spec))
    return caught.value


# ---------------------------------------------------------------- what a model may be


@pytest.mark.parametrize(
    "definition",
    [
        "def model(): return Net()",
        "def model(width=3): return Net(width)",
        "model = Net()",
        "model = Net",
        "model = lambda: Net()",
        "import functools; model = functools.partial(Net, 3)",
    ],
)
def test_every_way_to_give_a_module(write: Write, definition: str) -> None:
    entry = load_entry(str(write(MODEL, INPUTS, definition)))
    assert isinstance(entry.model, torch.nn.Module)
    assert entry.name == "Net"
    assert entry.args[0].shape == (2, 4)
    assert entry.kwargs == {}
    assert entry.dynamic_shapes is None


def test_a_function_over_tensors_is_the_model_itself(write: Write) -> None:
    entry = load_entry(str(write("import torch\ndef model(x, scale=2): return x * scale\n", INPUTS)))
    assert not isinstance(entry.model, torch.nn.Module)
    assert entry.model(torch.ones(1)).item() == 2
    assert entry.name == "model"


def test_a_factory_may_return_a_function(write: Write) -> None:
    entry = load_entry(str(write(MODEL, INPUTS, "def model():\n    def step(x): return x + 1\n    return step\n")))
    assert entry.name == "step"


def test_another_factory(write: Write) -> None:
    path = write(MODEL, INPUTS, "def wide(): return Net(width=9)")
    entry = load_entry(f"{path}:wide")
    assert isinstance(entry.model, torch.nn.Module)
    assert entry.model.linear.out_features == 9


def test_split_spec(tmp_path: Path) -> None:
    assert split_spec("a/model.py") == (Path("a/model.py"), "model")
    assert split_spec("a/model.py:tiny") == (Path("a/model.py"), "tiny")
    assert split_spec("C:/model.py") == (Path("C:/model.py"), "model")
    (tmp_path / "odd:name").touch()
    assert split_spec(str(tmp_path / "odd:name")) == (tmp_path / "odd:name", "model")


# ---------------------------------------------------------------- inputs and shapes


@pytest.mark.parametrize(
    ("returned", "args", "kwargs"),
    [
        ("(1, 2)", (1, 2), {}),
        ("()", (), {}),
        ("((1,), {'y': 2})", (1,), {"y": 2}),
        ("((), {})", (), {}),
        ("([1], {'y': 2})", ([1], {"y": 2}), {}),
        ("((1,), {'y': 2}, 3)", ((1,), {"y": 2}, 3), {}),
    ],
)
def test_example_inputs(write: Write, returned: str, args: object, kwargs: object) -> None:
    entry = load_entry(str(write(MODEL, "model = Net\n", f"def example_inputs(): return {returned}\n")))
    assert (entry.args, entry.kwargs) == (args, kwargs)


@pytest.mark.parametrize("definition", ["dynamic_shapes = {'x': {0: 3}}", "def dynamic_shapes(): return {'x': {0: 3}}"])
def test_dynamic_shapes_are_a_value_or_a_function(write: Write, definition: str) -> None:
    assert load_entry(str(write(MODEL, INPUTS, "model = Net\n", definition))).dynamic_shapes == {"x": {0: 3}}


# ---------------------------------------------------------------- the file as a module


def test_the_module_stays_findable_for_dynamo_and_inspect(write: Write) -> None:
    model = load_entry(str(write(MODEL, INPUTS, "model = Net"))).model
    assert type(model).__module__.startswith("_aotpack_entry_model")
    assert "model" not in sys.modules
    assert sys.modules[type(model).__module__].Net is type(model)
    assert "self.linear(x)" in inspect.getsource(type(model).forward)


def test_two_files_of_one_name_live_side_by_side(write: Write, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = load_entry(str(write(MODEL, INPUTS, "model = Net"))).model
    second = load_entry(str(write(MODEL, INPUTS, "model = Net", name="other/model.py"))).model
    assert type(first).__module__ != type(second).__module__
    assert sys.modules[type(first).__module__].Net is type(first)


def test_siblings_can_be_imported_and_the_path_is_restored(write: Write) -> None:
    write("WIDTH = 5\n", name="sibling_of_entry.py")
    before = list(sys.path)
    entry = load_entry(str(write(MODEL, INPUTS, "def model():\n    from sibling_of_entry import WIDTH\n    return Net(WIDTH)")))
    assert isinstance(entry, Entry)
    assert sys.path == before


def test_an_edited_file_is_read_anew_and_nothing_is_left_beside_it(write: Write, tmp_path: Path) -> None:
    path = write(MODEL, INPUTS, "model = Net(1)")
    assert load_entry(str(path)).model.linear.out_features == 1  # type: ignore[union-attr]
    write(MODEL, INPUTS, "model = Net(2)")
    assert load_entry(str(path)).model.linear.out_features == 2  # type: ignore[union-attr]
    assert [p.name for p in tmp_path.iterdir()] == ["model.py"]


def test_weights_are_the_same_each_time_and_the_callers_generator_is_untouched(write: Write) -> None:
    path = str(write(MODEL, INPUTS, "def model(): return Net()"))
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = load_entry(path).model
    assert torch.equal(torch.rand(1), expected)
    second = load_entry(path).model
    assert torch.equal(first.linear.weight, second.linear.weight)  # type: ignore[union-attr]


# ---------------------------------------------------------------- errors


def test_missing_file(tmp_path: Path) -> None:
    error = failure(tmp_path / "nothing.py")
    assert error.summary == f"There is no file {tmp_path / 'nothing.py'}."
    assert "model.py:factory" in error.hint


def test_a_directory_says_which_file_it_wants(tmp_path: Path) -> None:
    assert failure(tmp_path).hint == f"Did you mean {tmp_path / 'model.py'}?"


def test_not_python(write: Write) -> None:
    assert failure(write("hello", name="model.txt")).summary.endswith("model.txt is not a Python source file.")


def test_syntax_error_shows_the_line(write: Write) -> None:
    error = failure(write("import torch\n", "def model(:\n    pass\n"))
    assert error.summary.startswith("model.py could not be imported: SyntaxError:")
    assert [(p.where, p.message) for p in error.problems] == [("model.py:2", "def model(:")]


def test_syntax_error_in_a_sibling_names_the_sibling(write: Write) -> None:
    write("x = = 1\n", name="broken_sibling.py")
    assert failure(write("import broken_sibling\n")).problems[0].where == "broken_sibling.py:1"


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_bytes(b"x = '\xff\x00'\n")
    assert "could not be imported" in failure(path).summary


def test_an_import_that_raises(write: Write) -> None:
    path = write("import torch\n", "import not_a_package_of_anyone\n")
    error = failure(path)
    assert error.summary == ("model.py could not be imported: ModuleNotFoundError: No module named 'not_a_package_of_anyone'")
    assert [str(p) for p in error.problems] == ["model.py:2: import not_a_package_of_anyone"]
    assert isinstance(error.__cause__, ModuleNotFoundError)
    assert not any(getattr(m, "__file__", None) == str(path) for m in sys.modules.values())


def test_a_factory_that_raises_shows_the_users_frames_only(write: Write) -> None:
    path = write(
        """
        import torch
        def inner():
            return torch.nn.Linear("four", 2)
        def model():
            return inner()
        """
    )
    error = failure(path)
    assert error.summary.startswith("model() failed: TypeError:")
    assert [str(p) for p in error.problems] == [
        "model.py:6, in model: return inner()",
        'model.py:4, in inner: return torch.nn.Linear("four", 2)',
    ]
    assert "aotpack/model/entry.py" not in str(error)


def test_sys_exit_is_an_error_too(write: Write) -> None:
    error = failure(write("import sys\n", "sys.exit(3)\n"))
    assert error.summary == "model.py could not be imported: SystemExit: 3"
    assert error.problems[0].where == "model.py:2"


def test_ctrl_c_is_not_swallowed(write: Write) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_entry(str(write("raise KeyboardInterrupt\n")))


def test_a_class_that_wants_arguments(write: Write) -> None:
    error = failure(write("import torch\n", "class model(torch.nn.Module):\n    def __init__(self, width): ...\n", INPUTS))
    assert "missing 1 required positional argument: 'width'" in error.summary
    assert [str(p) for p in error.problems] == ["model.py:2: class model(torch.nn.Module):"]


@pytest.mark.parametrize(
    ("source", "summary", "where"),
    [
        ("x = 1\n", "model.py defines no `model`.", None),
        ("model = 3\n", "`model` is an int, not a module, a factory or a function.", "model.py:1"),
        ("def model(): return 3\n", "model() returned an int, not a torch.nn.Module or a function.", "model.py:1"),
        ("def model(): pass\n", "model() returned None, not a torch.nn.Module or a function.", "model.py:1"),
        (
            "import torch\ndef model(): return torch.nn.Linear\n",
            "model() returned a class, not a torch.nn.Module or a function.",
            "model.py:2",
        ),
        ("def model(x): return x\n", "model.py defines no `example_inputs`.", None),
        ("def model(x): return x\nexample_inputs = 3\n", "`example_inputs` is an int, not a function.", "model.py:2"),
        (
            "def model(x): return x\n\ndef example_inputs(): return [1]\n",
            "example_inputs() returned a list, not a tuple.",
            "model.py:3",
        ),
        (
            "def model(x): return x\ndef example_inputs(): return (1,), {2: 3}\n",
            "example_inputs() returned keyword arguments whose names are not strings: [2].",
            "model.py:2",
        ),
        (
            "def model(x): return x\ndef example_inputs(): return (1,)\ndynamic_shapes = 4\n",
            "`dynamic_shapes` is an int, not a dict or a tuple.",
            "model.py:3",
        ),
    ],
)
def test_what_the_file_defines_is_checked(write: Write, source: str, summary: str, where: str | None) -> None:
    error = failure(write(source))
    assert error.summary == summary
    assert [p.where for p in error.problems] == ([] if where is None else [where])
    assert error.hint
    assert isinstance(error, AotpackError)
