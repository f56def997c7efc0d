"""Valid vectors of the second kind: calls with exactly described arguments (calls.py).

Each case is a model in plain torch code, a build of it, and calls. A call that must be refused
names the rule it breaks. The first vectors are in ``vectors.py``. A written case is never changed.
"""

from __future__ import annotations

import dataclasses

from .case import Case, Function
from .cases_autograd import AUTOGRAD
from .cases_documents import DOCUMENTS
from .cases_functions import FUNCTIONS
from .cases_optimizers import OPTIMIZERS
from .cases_results import RESULTS_AND_WRITES
from .cases_rules import RULES
from .cases_untrusted import UNTRUSTED
from .cases_values import VALUES
from .cases_writes import WRITES
from .compiled import COMPILED

__all__ = ["CASES", "Case", "Function"]

DECLARED = {"flags": "declared_flags", "result_sources": "declared_sources"}
"""Cases of version 1.1, and their names in version 1.2, which names their features."""

CASES: dict[str, Case] = (
    RESULTS_AND_WRITES | VALUES | AUTOGRAD | DOCUMENTS | UNTRUSTED | RULES | COMPILED | OPTIMIZERS | FUNCTIONS | WRITES
)
CASES |= {
    new: dataclasses.replace(CASES[old], about=f"`{old}` of a program that names its feature", covers=["V4"])
    for old, new in DECLARED.items()
}
