"""Additions to elements whose indices are read from memory (``index_add``, gradients of
embeddings), without atomic instructions where few threads run.

Inductor adds atomically in code for any number of threads: each addition then takes a loop of
compare and exchange, and vectors are added element by element. With one thread at build it adds
plainly. Here the code has both, and decides when it runs. With up to four threads, the first of
them makes all additions of a loop, with plain vectors. That is faster than four threads that add
atomically, and the sums do not depend on the order of threads.

With more threads the loop is shared as before, and adds atomically. ``kernels.h`` has the
functions that decide.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch._inductor.config as inductor_config
from torch._inductor.codegen import common, cpp, cpp_utils
from torch._inductor.utils import IndentedBuffer

from ...api.patching import attribute_set, hooked, patched

_ALONE = "aotpack::adds_alone()"
_LOOP = "#pragma omp for"
_NO_DEPENDENCIES = "#pragma GCC ivdep"


@contextlib.contextmanager
def plain_additions() -> Iterator[None]:
    """Generate both kinds of additions, and loops that suit them."""
    storing: list[Any] = []
    with (
        _both(cpp.CppKernel, storing),
        _both(cpp.CppVecKernel, storing),
        _both(cpp.CppTile2DKernel, storing),
        patched("inductor-plain-additions", cpp.CppKernelProxy, "codegen_loops_impl", _loops()),
    ):
        yield


def _both(kind: Any, storing: list[Any]) -> contextlib.AbstractContextManager[Any]:
    """Generate both additions where a class of kernels stores.

    The outermost class decides: from torch 2.14 on, a tile passes its base class one index for
    plain additions and another for atomic ones. ``storing`` has the kernels that generate one.
    """
    store: Callable[..., None] = kind.store

    def stored(kernel: Any, name: str, index: sympy.Expr, value: Any, mode: str | None = None) -> None:
        if mode != "atomic_add" or kernel in storing or _is_transposed(kernel, index):
            return store(kernel, name, index, value, mode)
        storing.append(kernel)
        with attribute_set(kernel, "stores", IndentedBuffer()) as atomic:
            store(kernel, name, index, value, mode)
        with (
            attribute_set(kernel, "stores", IndentedBuffer()) as plain,
            attribute_set(kernel, "num_threads", 1),
            inductor_config.patch({"cpp.dynamic_threads": False}),
        ):
            store(kernel, name, index, value, mode)
        storing.remove(kernel)
        lines = [f"if ({_ALONE}) {{", *_texts(plain), "} else {", *_texts(atomic), "}"]
        kernel.stores.writelines([common.DeferredLine(name, line) for line in lines])
        return None

    return hooked("inductor-plain-additions", kind, "store", stored)


def _is_transposed(kernel: Any, index: sympy.Expr) -> bool:
    """Whether a tile is stored after the loop, all at once."""
    return isinstance(kernel, cpp.CppTile2DKernel) and bool(kernel.need_vec_transpose(kernel.rename_indexing(index)))


def _texts(buffer: Any) -> list[str]:
    """The lines of stores, all of which exist only if their buffer does."""
    return [line.line if isinstance(line, common.DeferredLine) else line for line in buffer._lines]


def _loops() -> Callable[..., None]:
    generate: Callable[..., None] = cpp.CppKernelProxy.codegen_loops_impl

    def generated(proxy: Any, nest: Any, code: Any, worksharing: Any) -> None:
        before = len(code._lines)
        generate(proxy, nest, code, worksharing)
        added = code._lines[before:]
        if not any(_ALONE in _text(line) for line in added):
            return
        shared = next((loop for loop in nest.loops or () if loop.parallel), None)
        code._lines[before:] = [_changed(line, nest.loops, shared) for line in added if _NO_DEPENDENCIES not in _text(line)]

    return generated


def _text(line: Any) -> str:
    found = getattr(line, "line", line)
    return found if isinstance(found, str) else ""


def _changed(line: Any, loops: Any, shared: Any) -> Any:
    """A line of a loop nest with additions; the directive of its shared loop gets a schedule."""
    if shared is None or not isinstance(line, str) or _LOOP not in line:
        return line
    start = loops.index(shared)
    counts = [
        f"(({_size(loop.size)}) + ({_size(loop.steps)}) - 1) / ({_size(loop.steps)})"
        for loop in loops[start : start + shared.parallel]
    ]
    product = " * ".join(f"static_cast<int64_t>({count})" for count in counts)
    return re.sub(f"{_LOOP}.*", lambda found: f"{found[0]} schedule(static, aotpack::iterations({product}))", line)


def _size(expression: sympy.Expr) -> str:
    return str(cpp_utils.cexpr_index(expression))
