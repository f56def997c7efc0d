"""Loads a model, its example inputs and its dynamic shapes from ``model.py[:factory]``.

This module runs the user's file and checks what it defines. Every error there becomes an
:class:`EntryError` that shows the user's own line and no frame of aotpack. This module does not
trace anything.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch

from aotpack_loader.errors import EntryError, Problem

from .. import origin
from .method import FORWARD, Method

EXAMPLE_INPUTS_HINT = "Return a tuple of positional arguments, or (args, kwargs): `return (x,)` or `return (x,), {'labels': y}`."
_BY_METHOD_HINT = "Return the inputs of each method: `return {'encode': (x,), 'forward': (x,)}`. The model's call is 'forward'."
SEED = 0
"""torch's seed while the file runs.

The same file then gives the same weights, and so the same bundle.
"""


@dataclass(frozen=True)
class Entry:
    """What a build needs to know about a model.

    ``name`` is the class or function that the user wrote. With ``methods``, these have all example inputs and
    sizes, those of the model's own call too, and ``args`` is None.
    """

    model: torch.nn.Module | Callable[..., Any]
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic_shapes: dict[str, Any] | tuple[Any, ...] | list[Any] | None = None
    name: str = "model"
    optimizer: Any = None
    methods: Mapping[str, Method] = field(default_factory=dict)

    def methods_in(self, modes: Sequence[str] | None) -> Sequence[str] | Mapping[str, Method] | None:
        """The argument ``methods`` of a build in these modes."""
        return {name: replace(method, modes=modes) for name, method in self.methods.items()} or modes

    @property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The example inputs of the model's own call; none if it has none."""
        own = self.methods.get(FORWARD)
        return (self.args or (), self.kwargs) if own is None else (own.args, dict(own.kwargs))


def load_entry(spec: str) -> Entry:
    """Run ``model.py`` or ``model.py:factory`` and return what it describes.

    Raises:
        EntryError: the file is missing or broken, raises an error, lacks a definition, or returns
            a wrong value.
    """
    path, factory = split_spec(spec)
    with directory_on_path(path), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        source = _Source(path, _import_file(path))
        model = _resolve_model(source, factory)
        functions = _resolve_methods(source)
        inputs = _resolve_inputs(source, functions)
        shapes = _resolve_dynamic_shapes(source)
        optimizer = _resolve_optimizer(source)
    if not functions:
        args, kwargs = inputs[FORWARD]
        return Entry(model, args, kwargs, shapes, _name(model, path), optimizer)
    if unknown := [name for name in shapes or () if name not in inputs]:
        raise EntryError(
            f"`dynamic_shapes` has {unknown[0]!r}, and example_inputs() does not.",
            source.at("dynamic_shapes"),
            hint="In a file with methods, it has the sizes of each by name: {'encode': {'x': {0: torch.export.Dim('batch')}}}.",
        )
    sizes = dict(shapes or {})
    methods = {
        name: Method(functions.get(name, FORWARD), args, kwargs, dynamic_shapes=sizes.get(name))
        for name, (args, kwargs) in inputs.items()
    }
    return Entry(model, None, name=_name(model, path), optimizer=optimizer, methods=methods)


def split_spec(spec: str) -> tuple[Path, str]:
    """Split ``path[:factory]``; the factory defaults to ``model``."""
    before, colon, after = spec.rpartition(":")
    if colon and after.isidentifier() and not Path(spec).exists():
        return Path(before), after
    return Path(spec), "model"


@contextmanager
def directory_on_path(path: Path) -> Iterator[None]:
    """Put the directory of ``path`` first in ``sys.path``, as running the file as a script would."""
    directory = str(path.resolve().parent)
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        if directory in sys.path:
            sys.path.remove(directory)


# ---------------------------------------------------------------- the file


@dataclass(frozen=True)
class _Source:
    """The user's file: its path, and the module made from it."""

    path: Path
    module: ModuleType

    def at(self, name: str) -> list[Problem]:
        """Return the line of the file that defines ``name``, as a problem of an error."""
        text = "".join(linecache.getlines(str(self.path.resolve())))
        lines = [node.lineno for node in ast.parse(text).body if name in _bound_names(node)]
        return [_line_problem(str(self.path.resolve()), lines[-1])] if lines else [Problem(_shown(self.path), "")]


def check_file(path: Path) -> None:
    """Check that there is a file to run.

    Raises:
        EntryError: there is none, or it is a directory.
    """
    if path.is_dir():
        raise EntryError(f"{path} is a directory, not a Python file.", hint=f"Did you mean {path / 'model.py'}?")
    if not path.is_file():
        raise EntryError(f"There is no file {path}.", hint="The entry is `path/to/model.py` or `path/to/model.py:factory`.")


def _import_file(path: Path) -> ModuleType:
    """Execute the file as a module that Dynamo and :mod:`inspect` find again in ``sys.modules``."""
    check_file(path)
    filename = str(path.resolve())
    linecache.checkcache(filename)
    name = _module_name(path, filename)
    spec = importlib.util.spec_from_file_location(name, filename)
    if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        raise EntryError(f"{path} is not a Python source file.", hint="The entry is a file whose name ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _user_code(f"{_shown(path)} could not be imported"):
            # exec_module would leave a __pycache__ beside the user's file.
            code = spec.loader.source_to_code(spec.loader.get_data(filename), filename)
            exec(code, module.__dict__)  # noqa: S102 - running the file is what the user asked for
    except EntryError:
        sys.modules.pop(name, None)
        raise
    return module


def _module_name(path: Path, filename: str) -> str:
    """Return a private module name.

    It differs from that of another loaded file with the same stem.
    """
    stem = path.stem if path.stem.isidentifier() else "model"
    base = f"{origin.ENTRY_MODULE}{stem}"
    name, count = base, 1
    while name in sys.modules and getattr(sys.modules[name], "__file__", None) != filename:
        count += 1
        name = f"{base}_{count}"
    return name


def _bound_names(node: ast.stmt) -> set[str]:
    """Return the names that a top-level statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


# ---------------------------------------------------------------- the file's definitions


def _resolve_model(source: _Source, factory: str) -> torch.nn.Module | Callable[..., Any]:
    found = _lookup(source, factory, hint=f"Define `def {factory}(): return MyModel()`, or name another factory: model.py:name.")
    if isinstance(found, torch.nn.Module):
        return found
    if not callable(found):
        raise EntryError(
            f"`{factory}` is {_a(found)}, not a module, a factory or a function.",
            source.at(factory),
            hint="Make it a torch.nn.Module, a factory (no required arguments) of one, or a function over tensors.",
        )
    is_class = inspect.isclass(found)
    if _has_required_parameters(found) and not is_class:
        return _as_callable(found)
    made = _call(source, found, factory)
    if isinstance(made, torch.nn.Module) or (callable(made) and not inspect.isclass(made)):
        return _as_callable(made)
    raise EntryError(
        f"{factory}() returned {_a(made)}, not a torch.nn.Module or a function.",
        source.at(factory),
        hint="A function without required arguments is taken as a factory: return the model from it."
        if made is not None
        else "Is a `return` missing?",
    )


def _resolve_methods(source: _Source) -> dict[str, Callable[..., Any] | str]:
    """The functions of the model beside its call, by name. Empty: the file defines none."""
    name = "methods"
    found = getattr(source.module, name, None)
    if found is None:
        return {}
    if not isinstance(found, dict) or not found or not all(callable(one) or isinstance(one, str) for one in found.values()):
        raise EntryError(
            f"`{name}` is {_a(found)}, not a dict of functions of the model.",
            source.at(name),
            hint="Write `methods = {'encode': encode}` with `def encode(model, x): ...`, or the name of a method of the model.",
        )
    return found


def _resolve_inputs(
    source: _Source, functions: Mapping[str, Callable[..., Any] | str]
) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """The example inputs of the model's own call, and of the ``functions`` of a file that has some."""
    name = "example_inputs"
    found = _lookup(source, name, hint=f"Define `def {name}(): return (x,)`: a build traces the model on these inputs.")
    if not callable(found):
        raise EntryError(f"`{name}` is {_a(found)}, not a function.", source.at(name), hint=EXAMPLE_INPUTS_HINT)
    value = _call(source, found, name)
    if not functions:
        return {FORWARD: _inputs(source, value, f"{name}() returned")}
    if not isinstance(value, dict):
        raise EntryError(f"{name}() returned {_a(value)}, and `methods` needs a dict.", source.at(name), hint=_BY_METHOD_HINT)
    known = {FORWARD, *functions}
    problems = [f"has no inputs of {one!r}" for one in functions if one not in value]
    problems += [f"has inputs of {one!r}, which is not in `methods`" for one in value if one not in known]
    if problems:
        raise EntryError(f"{name}() {problems[0]}.", source.at(name), hint=_BY_METHOD_HINT)
    return {one: _inputs(source, inputs, f"{name}() has for {one!r}") for one, inputs in value.items()}


def _inputs(source: _Source, value: Any, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments among which a user gave for one call. ``what`` begins an error."""
    name = "example_inputs"
    if not isinstance(value, tuple):
        raise EntryError(f"{what} {_a(value)}, not a tuple.", source.at(name), hint=EXAMPLE_INPUTS_HINT)
    if len(value) == 2 and isinstance(value[0], tuple) and isinstance(value[1], dict):
        wrong = [key for key in value[1] if not isinstance(key, str)]
        if wrong:
            raise EntryError(
                f"{what} keyword arguments whose names are not strings: {wrong}.",
                source.at(name),
                hint=EXAMPLE_INPUTS_HINT,
            )
        return value[0], value[1]
    return value, {}


def _resolve_dynamic_shapes(source: _Source) -> dict[str, Any] | tuple[Any, ...] | list[Any] | None:
    name = "dynamic_shapes"
    value = getattr(source.module, name, None)
    if callable(value):
        value = _call(source, value, name)
    if value is None or isinstance(value, dict | tuple | list):
        return value
    raise EntryError(
        f"`{name}` is {_a(value)}, not a dict or a tuple.",
        source.at(name),
        hint="It has the form of torch.export's dynamic_shapes: {'x': {0: torch.export.Dim('batch')}}.",
    )


def _resolve_optimizer(source: _Source) -> Any:
    """A function of the model, or several by name, whose errors show the user's lines. None: the file defines none."""
    name = "optimizer"
    found = getattr(source.module, name, None)
    if found is None:
        return None
    functions = found if isinstance(found, dict) else {name: found}
    if not functions or not all(map(callable, functions.values())):
        raise EntryError(
            f"`{name}` is {_a(found)}, not a function of the model.",
            source.at(name),
            hint="Define `def optimizer(model): return torch.optim.AdamW(model.parameters(), lr=1e-3)`, or a dict of functions.",
        )

    def guarded(key: str, function: Callable[[torch.nn.Module], Any]) -> Callable[[torch.nn.Module], Any]:
        return lambda model: _call(source, lambda: function(model), key)

    return {key: guarded(key, function) for key, function in functions.items()}


def _lookup(source: _Source, name: str, *, hint: str) -> Any:
    try:
        return getattr(source.module, name)
    except AttributeError:
        raise EntryError(f"{_shown(source.path)} defines no `{name}`.", hint=hint) from None


def _has_required_parameters(function: Callable[..., Any]) -> bool:
    """Whether a function has required parameters.

    True if its signature is unknown, as for some built-in functions.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is inspect.Parameter.empty and p.kind not in variadic for p in parameters)


def _as_callable(value: Any) -> torch.nn.Module | Callable[..., Any]:
    function: torch.nn.Module | Callable[..., Any] = value
    return function


def _call(source: _Source, function: Callable[[], Any], name: str) -> Any:
    with _user_code(f"{name}() failed", source.at(name)):
        return function()


def _name(model: torch.nn.Module | Callable[..., Any], path: Path) -> str:
    if isinstance(model, torch.nn.Module):
        return type(model).__name__
    name = getattr(model, "__name__", "")
    return name if name.isidentifier() else path.stem


def _a(value: object) -> str:
    """Return ``None``, or a value's type with its article: ``a Tensor``, ``an int``."""
    if value is None:
        return "None"
    name = "class" if inspect.isclass(value) else type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


# ---------------------------------------------------------------- errors of the user's code


@contextmanager
def _user_code(doing: str, called: Sequence[Problem] = ()) -> Iterator[None]:
    """Turn errors of the user's code, and ``sys.exit``, into an :class:`EntryError` with the user's lines.

    ``called`` is the line to show if the call itself failed before any line of the user's ran.
    """
    try:
        yield
    except EntryError:
        raise
    except SyntaxError as error:
        where = [] if error.filename is None else [_syntax_problem(error)]
        raise EntryError(f"{doing}: {type(error).__name__}: {error.msg}", where) from error
    except (Exception, SystemExit) as error:
        raise EntryError(f"{doing}: {_describe(error)}", _user_frames(error.__traceback__) or called) from error


def _describe(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()


def _syntax_problem(error: SyntaxError) -> Problem:
    filename, lineno = str(error.filename), error.lineno or 1
    text = (error.text or linecache.getline(filename, lineno)).strip()
    return Problem(f"{_shown(Path(filename))}:{lineno}", text)


def _user_frames(tb: TracebackType | None) -> list[Problem]:
    """Return the frames of a traceback that are in the user's code, outermost first."""
    frames = [frame for frame in traceback.extract_tb(tb) if origin.is_users_own(frame.filename)]
    return [_line_problem(frame.filename, frame.lineno or 1, frame.name) for frame in frames]


def _line_problem(filename: str, lineno: int, function: str = "<module>") -> Problem:
    where = f"{_shown(Path(filename))}:{lineno}"
    if function != "<module>":
        where += f", in {function}"
    return Problem(where, linecache.getline(filename, lineno).strip())


def _shown(path: Path) -> str:
    """Return the path, relative to the working directory if it is inside."""
    resolved = path.resolve()
    return str(resolved.relative_to(Path.cwd())) if resolved.is_relative_to(Path.cwd()) else str(path)
