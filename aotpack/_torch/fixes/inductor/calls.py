"""Fixes of the calls of kernels in AOTInductor's code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch._inductor import ir

from ...api.patching import attribute_set, patched


@contextlib.contextmanager
def record_defaults() -> Iterator[None]:
    """Record defaults of a kernel's keyword arguments that code passes: the difference of complex
    numbers has ``alpha=1``.

    AOTInductor passes such numbers without recording them, and the call raises an error. A call
    with an empty list (``hash_tensor``'s ``dim``) raises too, because AOTInductor drops the list.
    Such a call is rejected when it is compiled.
    """
    export: Callable[[ir.FallbackKernel], Any] = ir.FallbackKernel.export_extern_kernel_node

    def recorded(kernel: ir.FallbackKernel) -> Any:
        unflatten: Callable[..., Any] = kernel.unflatten_args

        def with_defaults(*values: Any) -> Any:
            args, kwargs = unflatten(*values)
            known = {name: kernel.get_kwargs_value(name, **kwargs) for name in kernel.ordered_kwargs_for_cpp_kernel}
            return args, kwargs | {name: value for name, value in known.items() if value is not None}

        with attribute_set(kernel, "unflatten_args", with_defaults):
            passed = export(kernel)
        if any(isinstance(value, list | tuple) and not value for value in passed or ()):
            raise NotImplementedError("AOTInductor cannot pass an empty list to a kernel")
        return passed

    with patched("inductor-defaults-of-kernels", ir.FallbackKernel, "export_extern_kernel_node", recorded):
        yield
