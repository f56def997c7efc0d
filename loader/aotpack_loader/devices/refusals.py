"""Converts the error of an operator to an error of ours that names the operator and the model's source line.

It is imported only after an operator has raised an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import AotpackError, OperatorError, Problem
from ..format import schema

_CHECK = re.compile(r"\[aotpack check\] (\S*): ([^\n]*)")
"""What compiled code throws: nodes with their operators, and what is wrong."""
_CALL = re.compile(r"\baoti_torch_(?:cpu_)?(\w+?)(?:_out)?\(")
_LISTED_CALL = re.compile(r"\baoti_torch_proxy_executor_call_function\(\s*\w+,\s*(\d+)")
"""A call through the dispatcher: the position in the list of operators that the code calls."""
_NUMBERED = re.compile(r"_\d+$")
_DIVIDES = re.compile(r"\.(_*div|floor_divide|remainder|fmod|mod|divmod)\w*\.?")
_OUT_OF_RANGE = re.compile(r"\bindex\b.* out of (bounds|range)")
_BRANCH = "the branch goes another way than"
"""Part of the message of a branch assertion. :mod:`..runtime.branches` makes the error for it."""
_HINT = "Types and sizes of the arguments are as the bundle expects them: look at their values."


def of_operator(error: Exception, node: tuple[str, str], program: schema.Program, key: str) -> Exception:
    """The error to raise for the error of a node (its name and operator) of the graph called ``key``.

    An error whose class belongs neither to Python nor to torch is the user's own and is kept.
    """
    name, operator = node
    if (
        isinstance(error, AotpackError)
        or _BRANCH in str(error)
        or type(error).__module__.partition(".")[0] not in ("builtins", "torch")
    ):
        return error
    lines = _lines(program, key)
    return _error(type(error), [operator], [lines[name]] if name in lines else [], _first_line(error), key)


def of_compiled_code(error: Exception, program: schema.Program, key: str, listed: Sequence[str] = ()) -> Exception:
    """The error to raise for the error of the compiled code of the graph called ``key``.

    ``listed`` are the operators that the code calls through the dispatcher.
    """
    text = str(error)
    lines = _lines(program, key)
    found = _CHECK.search(text)
    if _BRANCH in text:
        return RuntimeError(found[2] if found else _reason(text))
    if found:
        nodes = [node.partition("=") for node in found[1].split(",") if node]
        called = list(dict.fromkeys(lines[name] for name, _, _ in nodes if name in lines))
        kind = IndexError if _OUT_OF_RANGE.search(found[2]) else RuntimeError
        return _error(kind, list(dict.fromkeys(name for _, _, name in nodes)), called, found[2], key)
    if "ZeroDivisionError" in text:
        return _error(RuntimeError, ["an integer division"], _dividing(lines), "ZeroDivisionError: the divisor is 0", key)
    if "API call failed at" in text and (name := _operator(text, listed)):
        message = text.partition("API call failed at")[2].partition("\n")[2].strip().partition("\n")[0] or "it failed"
        kind = IndexError if _OUT_OF_RANGE.search(message) else RuntimeError
        return _error(kind, [name], _calling(name, lines), message, key)
    return _error(RuntimeError, ["compiled code"], [], _reason(text), key)


def _error(kind: type[Exception], operators: list[str], lines: list[str], message: str, key: str) -> OperatorError:
    problems = [
        Problem(line, "called here" if len(lines) == 1 else "called here, or at another of these lines") for line in lines
    ]
    names = " or ".join(operators)
    return _class(kind)(f"{names} refused the values of this call, in {key}: {message}", problems, hint=_HINT)


_classes: dict[type[Exception], type[OperatorError]] = {}


def _class(kind: type[Exception]) -> type[OperatorError]:
    """A subclass of :class:`OperatorError` and of the class that eager raises, so that callers can catch either."""
    if issubclass(OperatorError, kind):
        return OperatorError
    if kind not in _classes:
        contents = {"__module__": OperatorError.__module__, "__str__": AotpackError.__str__}
        _classes[kind] = type("OperatorError", (OperatorError, kind), contents)
    return _classes[kind]


def _lines(program: schema.Program, key: str) -> Mapping[str, str]:
    """The model's source lines by node, for the graph called ``key`` or a part of it."""
    for name, method in program.methods.items():
        for half in ("forward", "backward"):
            if f"{key}.".startswith(f"{name}.{half}."):
                start = f"{half}/"
                return {node.removeprefix(start): line for node, line in method.lines.items() if node.startswith(start)}
    return {}


def _dividing(lines: Mapping[str, str]) -> list[str]:
    return list(dict.fromkeys(line for name, line in lines.items() if _DIVIDES.search(f".{name}")))


def _operator(text: str, listed: Sequence[str]) -> str:
    """The operator whose call failed: its full name if the code calls it through the dispatcher."""
    if found := _LISTED_CALL.search(text):
        position = int(found[1])
        return listed[position] if position < len(listed) else "an operator"
    called = _CALL.search(text)
    return called[1] if called else ""


def _calling(operator: str, lines: Mapping[str, str]) -> list[str]:
    """Lines of the nodes that call an operator.

    Nodes are called after their operators. A function's name may have an overload at its end (``scatter_reduce_two``).
    Compiled code calls that function for ``scatter_add``, too.
    """
    name = (operator.split(".")[1] if "." in operator else operator).strip("_")
    bases = {node: _NUMBERED.sub("", node).strip("_") for node in lines}
    named = max((base for base in bases.values() if f"{name}_".startswith(f"{base}_")), key=len, default=name)
    called = {named, "scatter_add"} if name == "scatter_reduce_two" else {named}
    return list(dict.fromkeys(lines[node] for node, base in bases.items() if base in called))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def _reason(text: str) -> str:
    """The message of the code's own exception, without the location in torch's runner."""
    return text.strip().splitlines()[0] if text.strip() else "it failed"
