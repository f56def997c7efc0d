"""Finishes the C++ that Inductor writes: adds the functions of ours that it calls, and calls them."""

from __future__ import annotations

import re
from typing import Final

from ...fixes.inductor.checks import with_checks, with_kernel_errors
from . import CSRC

_LSTM = "aoti_torch_cpu_mkldnn_rnn_layer("
_GROUPED = re.compile(
    r"aoti_torch_cpu_convolution_backward(\([^;]*, (?!1L)\d+L, (?:static_cast<const int32_t\*>\()?std::array<int32_t, 3>)"
)
"""A call that differentiates a convolution in several groups: their number is before the last array. torch 2.15 casts arrays."""
_PRODUCTS = ("mm_out", "addmm_out")
CLEARED_REGISTERS: Final = "expensive-optimizations"
"""GCC's option that ends wide copies with ``vzeroupper``. Below O2, GCC leaves that out. On Intel's processors,
SSE code that runs after such a copy is slow then: libm's ``tanhf`` takes seven times as long."""
_RUN = "void AOTInductorModel::run_impl("
_ALLOCATE = "aoti_torch_empty_strided("
_LONG = 1000


def finished_wrapper(wrapper: str, products: int, runs: int) -> str:
    """The source of a wrapper. Its products of at least ``products`` multiplications are oneDNN's; 0 for none.

    ``runs``: how often a step runs the code.
    """
    wrapper = _with_large_pages(_with_products(_with_depthwise(with_functions(wrapper)), products), runs)
    return with_kernel_errors(_plain_if_long(wrapper))


def _with_products(source: str, products: int) -> str:
    """A wrapper whose products of at least ``products`` multiplications are oneDNN's; 0 for none."""
    if not products or not any(f"aoti_torch_cpu_{name}(" in source for name in _PRODUCTS):
        return source
    for name in _PRODUCTS:
        source = source.replace(f"aoti_torch_cpu_{name}(", f"aotpack::{name}(")
    threshold = f"#include <cstdint>\nstatic constexpr int64_t aotpack_products_from = {products};\n"
    return f"{threshold}{_headers('tensors.h', 'products.h')}{source}"


def _with_depthwise(wrapper: str) -> str:
    """A wrapper in which depthwise convolutions are differentiated by ``depthwise.h``."""
    wrapper, calls = _GROUPED.subn(r"aotpack::convolution_backward\1", wrapper)
    return f"{_headers('tensors.h', 'depthwise.h')}{wrapper}" if calls else wrapper


def _headers(*names: str) -> str:
    """The text of files of ours."""
    return "".join(f"{(CSRC / name).read_text()}\n" for name in names)


def with_functions(source: str) -> str:
    """A file of generated code, with the functions that it calls: those of checks, of ``kernels.h`` and of ``lstm.h``."""
    if _LSTM in source:
        return _headers("tensors.h", "lstm.h") + with_checks(source.replace(_LSTM, "aotpack::lstm_layer("))
    source = source.replace("CascadeSumHelper<", "aotpack::CascadeSum<")
    needed = any(name in source for name in ("aotpack::", "VecMask<"))
    return (_headers("kernels.h") if needed else "") + with_checks(source)


def _with_large_pages(wrapper: str, runs: int) -> str:
    """A wrapper that gives its large buffers large pages after the first step (``large_pages.h``)."""
    if _ALLOCATE not in wrapper:
        return wrapper
    before, start, body = wrapper.replace(_ALLOCATE, "aotpack::empty_strided(").partition(f"\n{_RUN}")
    signature, brace, rest = body.partition("{\n")
    step = f"static constexpr int aotpack_runs_of_a_step = {runs};\n"
    return f"{step}{_headers('large_pages.h')}{before}{start}{signature}{brace}    aotpack::begin_run();\n{rest}"


def _plain_if_long(wrapper: str) -> str:
    """A wrapper whose main function is compiled without optimization if it has more than 1,000 lines.

    That function only calls kernels, one after another. The compiler's time for it grows with the
    model, and is 1.7 instead of 2.8 s for the backward of GPT-2 small, with 190 kernels.
    """
    before, start, body = wrapper.partition(f"\n{_RUN}")
    if body.count("\n") <= _LONG:
        return wrapper
    return f'{before}\n__attribute__((optimize("O0", "{CLEARED_REGISTERS}"))) {start.lstrip()}{body}'
