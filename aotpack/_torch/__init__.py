"""All private torch APIs that the compiler uses, and nothing else, in five rooms.

- ``inductor/``: compiles graphs with AOTInductor; ``codegen/`` has the rules of generated code,
  ``toolchain/`` the compilers below it, ``csrc/`` sources in C++.
- ``tracing/``: Dynamo, AOTAutograd and its partitioner.
- ``fixes/``: the register of fixes of torch.
- ``refusals/``: what torch would compile to something else, found and refused.
- ``api/``: thin adapters.

Each room imports those below it.

Each function says what it wraps. A new torch release can therefore be checked by reading this
package alone. Importing it checks that this torch has the names that its modules import.
"""

from __future__ import annotations

from .fixes.gate import check_imports

check_imports()
