"""Finds source lines of the model for messages: the user's own, and those of libraries that it calls."""

from __future__ import annotations

import itertools
import re
import traceback
from collections.abc import Iterable

from .. import origin


def of_error(error: BaseException) -> str:
    """Return ``file:line: source`` of the model's innermost line behind an exception, or an empty string.

    If that is a library's line, the text also names the user's line that called it.
    """
    told = getattr(error, "stack", "") or str(error).partition("from user code:")[2]
    lines = _model_lines(traceback.extract_tb(error.__traceback__)) or _model_lines(_frames_in(told))
    own = [text for path, text in lines if origin.is_users_own(path)]
    if not lines:
        return ""
    inner = lines[-1][1]
    return inner if not own or own[-1] == inner else f"{inner}, called from {own[-1]}"


def frames_of(error: BaseException) -> list[str]:
    """Return ``file:line: source`` of the user's lines behind an exception, outermost first.

    If there are none, return a library's lines. Each line is there once, where a function calls itself.
    """
    lines = _model_lines(traceback.extract_tb(error.__traceback__))
    own = [text for path, text in lines if origin.is_users_own(path)] or [text for _, text in lines]
    return list(dict.fromkeys(own))


def of_stack(stack: traceback.StackSummary) -> str:
    """Return ``file:line: source`` of the user's innermost line, or an empty string."""
    return next((text for path, text in reversed(_model_lines(stack)) if origin.is_users_own(path)), "")


def _model_lines(frames: Iterable[traceback.FrameSummary]) -> list[tuple[str, str]]:
    """Return file and text of the model's frames, which are not torch's, Python's or aotpack's."""
    return [(f.filename, f"{f.filename}:{f.lineno}: {(f.line or '').strip()}") for f in frames if origin.is_model(f.filename)]


def _frames_in(text: str) -> list[traceback.FrameSummary]:
    """Parse the lines of a stack in a text: a node's, or what Dynamo lists below "from user code:"."""
    lines = text.splitlines()
    return [
        traceback.FrameSummary(match.group(1), int(match.group(2)), "", line=code.strip())
        for line, code in itertools.pairwise(lines)
        if (match := re.match(r'\s*File "([^"]+)", line (\d+)', line))
    ]
