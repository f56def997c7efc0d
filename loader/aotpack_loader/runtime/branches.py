"""The error for a call in which a traced Python branch goes another way than on the example inputs."""

from __future__ import annotations

import re

from ..errors import BranchError, Problem

BRANCH_MESSAGE = "the branch goes another way than on the inputs that the bundle was built with"
"""What every graph says that asserts a branch, after the user's line and the value that it read at build."""

_MESSAGE = re.compile(rf"(?P<where>[^\n]*?):?(?: \[(?P<value>[^\]\n]*)\])?: {BRANCH_MESSAGE}")


def branch_error(error: RuntimeError) -> BranchError:
    """The error for a failed assertion in a graph whose message contains :data:`BRANCH_MESSAGE`."""
    match = _MESSAGE.search(str(error))
    where, value = (match["where"], match["value"]) if match else ("the model", None)
    if value in ("True", "False"):
        found = f"is {value != 'True'}, was {value} on the example inputs"
    else:
        found = "has another value" + (f", was {value} on the example inputs" if value is not None else "")
    return BranchError(
        "A Python branch of the model differs from the one that was traced on the example inputs.",
        [Problem(where, found)],
        hint="Nothing was written to. If the model raises an error there, these inputs are not for it. Otherwise use torch.where "
        "or torch.cond there, or build a bundle with inputs like these.",
    )
