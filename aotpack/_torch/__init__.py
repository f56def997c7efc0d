"""All private torch APIs that the compiler uses, and nothing else, with one module for each part of
torch.

- ``dynamo``, ``aot_autograd``, ``partitioner``, ``inductor``: the drivers of torch's compilers.
- ``api/``: thin adapters.
- ``refusals/``: what torch would compile to something else, found and refused.
- ``fixes/``: the register of fixes of torch.

Each function says what it wraps. A new torch release can therefore be checked by reading this
package alone. Importing it checks that this torch has the names that its modules import.
"""

from __future__ import annotations

from .fixes.gate import check_imports

check_imports()
