"""Fixes of value checks in compiled code: each failure becomes an exception that names the operator
and the value.

Inductor's own checks throw at once. Most kernels are OpenMP regions on several threads, and an
exception that leaves such a region ends the process. Here the body of a loop catches the first
exception of its kernel, and the kernel throws it after its regions. The path without failures gets
no additional code.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor import ir, virtualized
from torch._inductor.codegen import common, cpp, cpp_utils
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ...api.negative_indices import ROWS, operator_of
from ...api.patching import attribute_set, patched, replaced

_ID = "inductor-checks-end-the-process"
MARK = "[aotpack check]"
"""Prefix of the message of such an exception; after it come nodes with their operators, a colon,
and the reason.
"""

_BY_VALUE = re.compile(r"index|embedding|gather|scatter|take|put|select|repeat_interleave|bucketize|nll_loss|pool|grid_sampl")
_AS_GIVEN = ("aten.embedding.", "aten.gather.", *map(str, ROWS))
"""Operators that take no negative index, so that the checked index is the one that was given."""
_THROWS = re.compile(r"\baotpack_\w+\(|\bthrow\b|_CHECK\(|\b(floor_divide|remainder|mod)\w*\(")

_written: Callable[[Any], str] = cpp_utils.cexpr_index
_CALLS_CHECKS = re.compile(r"\b(aotpack_(refuse|bad_index|bad_indices|divisor)|AotpackFailure)\b")
"""Only for these: their header is a third of the C++ compiler's work on a file that does not include it itself."""
_ANY = "std::numeric_limits<int64_t>::max()"
_TOLD = "g_aoti_last_error = e.what();"
_TOLD_MORE = """\
if (g_aoti_last_error.find("API call failed") != std::string::npos) { \
g_aoti_last_error += std::string("\\n") + torch_exception_get_what_without_backtrace(); \
if (torch::aot_inductor::set_last_error) { torch::aot_inductor::set_last_error(g_aoti_last_error.c_str()); } }"""
_DECLARED = """\
extern "C" const char* torch_exception_get_what_without_backtrace();
namespace torch::aot_inductor { __attribute__((weak)) void set_last_error(const char*); }
"""
"""From 2.13 on, torch's runner reads the message that an operator left before it asks the code."""
_PRINTED = """std::cerr << "Error: " << e.what() << '\\n';"""

_KEEPER = """
#include <atomic>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <torch/csrc/inductor/cpp_prefix.h>

namespace {

// Keeps the first exception of several threads, to be thrown again by one.
class AotpackFailure {
 public:
  void keep() noexcept {
    if (!claimed_.test_and_set()) {
      first_ = std::current_exception();
    }
  }
  void raise() {
    if (C10_UNLIKELY(first_ != nullptr)) {
      std::rethrow_exception(std::move(first_));
    }
  }

 private:
  std::atomic_flag claimed_ = ATOMIC_FLAG_INIT;
  std::exception_ptr first_;
};

[[noreturn, maybe_unused]] __attribute__((noinline, cold)) void aotpack_refuse(const char* nodes, const std::string& what) {
  throw std::runtime_error("[aotpack check] " + std::string(nodes) + ": " + what);
}

[[noreturn, maybe_unused]] __attribute__((noinline, cold)) void aotpack_bad_index(
    const char* nodes, bool exact, int64_t index, int64_t size) {
  const std::string which = exact || index >= 0 ? "index " + std::to_string(index) : std::string("an index");
  if (size == std::numeric_limits<int64_t>::max()) {
    aotpack_refuse(nodes, which + " is out of bounds");
  }
  aotpack_refuse(nodes, which + " is out of bounds for a dimension of size " + std::to_string(size));
}

template <typename T>
[[noreturn, maybe_unused]] __attribute__((noinline, cold)) void aotpack_bad_indices(
    const char* nodes, bool exact, const T& indices, int count, int64_t size) {
  typename T::value_type values[T::size()];
  indices.store(values);
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<int64_t>(values[i]);
    if (index < 0 || index >= size) {
      aotpack_bad_index(nodes, exact, index, size);
    }
  }
  aotpack_bad_index(nodes, false, -1, size);
}

template <typename T>
[[maybe_unused]] inline T aotpack_divisor(const T& by) {
  if constexpr (std::is_integral_v<T>) {
    TORCH_CHECK(by != 0, "ZeroDivisionError");
  } else {
    typename T::value_type values[T::size()];
    by.store(values);
    for (int i = 0; i < T::size(); ++i) {
      TORCH_CHECK(values[i] != 0, "ZeroDivisionError");
    }
  }
  return by;
}

} // namespace
"""


@contextlib.contextmanager
def throw_after_regions() -> Iterator[None]:
    """Generate code whose checks can be caught, and whose messages name the operator and the value."""
    with _indices(), _assertions(), _kept():
        yield


@contextlib.contextmanager
def keep_messages() -> Iterator[None]:
    """Write the graph's own assertions, with their messages, before those that Inductor derives from
    its knowledge of sizes.
    """
    codegen: Callable[..., None] = ir.AssertScalar.codegen

    def written(assertion: ir.AssertScalar, wrapper: Any) -> None:
        _own_assertions(assertion, wrapper)
        codegen(assertion, wrapper)

    with patched("inductor-assertion-messages", ir.AssertScalar, "codegen", written):
        yield


@contextlib.contextmanager
def check_scatters() -> Iterator[None]:
    """Check the error codes of calls to ATen's ``scatter`` and ``index_put``, which Inductor ignores."""
    with (
        _checked_calls("_generate_scatter_fallback"),
        _checked_calls("_generate_index_put_fallback"),
    ):
        yield


def _checked_calls(name: str) -> contextlib.AbstractContextManager[Any]:
    """Check the error code of each call that a method of the wrapper's generator writes."""
    generate: Callable[..., None] = getattr(CppWrapperCpu, name)

    def checked(wrapper: Any, *args: Any, **kwargs: Any) -> None:
        write = wrapper.writeline

        def with_check(line: str) -> None:
            called = line.startswith("aoti_torch_")
            write(f"AOTI_TORCH_ERROR_CODE_CHECK({line.removesuffix(';')});" if called else line)

        with attribute_set(wrapper, "writeline", with_check):
            generate(wrapper, *args, **kwargs)

    return patched("inductor-unchecked-scatters", CppWrapperCpu, name, checked)


def with_checks(source: str) -> str:
    """A file of generated code, with the functions that its checks call."""
    return f"{_KEEPER}\n{source}" if _CALLS_CHECKS.search(source) else source


def with_kernel_errors(source: str) -> str:
    """Change the interface of AOTInductor's code: it prints nothing, and its error has both the
    call of the operator and the operator's own message.
    """
    return _DECLARED + source.replace(_PRINTED, "").replace(_TOLD, f"{_TOLD} {_TOLD_MORE}")


@contextlib.contextmanager
def _indices() -> Iterator[None]:
    """Check indices that are read from memory.

    A mask of one element is a ``bool``. Inductor computes its complement with ``~``, which is true
    for either value. Without this fix no index under such a mask is checked.
    """
    scalar: Callable[..., str] = common.Kernel.indirect_assert
    vector: Callable[..., str] = cpp.CppVecKernel.indirect_assert

    def condition(line: str, kernel: Any) -> str:
        return line.removeprefix(f"{kernel.assert_function}(").rpartition(', "index out of bounds')[0]

    def checked(kernel: Any, var: Any, lower: Any, upper: Any, mask: Any = None) -> str:
        nodes, exact = _nodes(_BY_VALUE)
        holds = condition(scalar(kernel, var, lower, upper), kernel)
        if mask:
            holds = f"({holds}) || !({mask})"
        call = f"aotpack_bad_index({nodes}, {exact}, static_cast<int64_t>({var}), {upper or _ANY})"
        return f"if (C10_UNLIKELY(!({holds}))) {call}"

    def checked_vector(kernel: Any, var: Any, lower: Any, upper: Any, mask: Any = None) -> str:
        if not var.is_vec:
            several = getattr(mask, "is_vec", False)
            return checked(kernel, var, lower, upper, f"({mask}).all_masked()" if several else mask)
        nodes, exact = _nodes(_BY_VALUE)
        holds = condition(vector(kernel, var, lower, upper, mask), kernel)
        count = "0" if mask else _written(kernel.tail_size or kernel.tiling_factor)
        call = f"aotpack_bad_indices({nodes}, {exact}, {var}, {count}, {upper or _ANY})"
        return f"if (C10_UNLIKELY(!({holds}))) {call}"

    with (
        patched(_ID, common.Kernel, "indirect_assert", checked),
        patched(_ID, cpp.CppVecKernel, "indirect_assert", checked_vector),
    ):
        yield


@contextlib.contextmanager
def check_divisors() -> Iterator[None]:
    """Check integer divisors if the quotient is rounded towards zero: a division by zero would end
    the process.

    The exception leaves the parallel region by :func:`throw_after_regions`.
    """
    vector: Callable[..., str] = cpp.CppVecOverrides.truncdiv

    def of_one(a: Any, b: Any) -> str:
        return f"({a} / aotpack_divisor({b}))"

    def of_several(a: Any, b: Any) -> str:
        left, _, right = vector(a, b).partition(" / ")
        return f"({left} / aotpack_divisor({right}))"

    with (
        patched("inductor-integer-division-by-zero", cpp.CppOverrides, "truncdiv", of_one),
        patched("inductor-integer-division-by-zero", cpp.CppVecOverrides, "truncdiv", of_several),
    ):
        yield


@contextlib.contextmanager
def _assertions() -> Iterator[None]:
    """Generate the checks for assertions of the model."""

    def checked(kernel: Any, cond: Any, msg: str) -> None:
        nodes, _ = _nodes(re.compile("assert"))
        kernel.compute.writeline(f"if (C10_UNLIKELY(!({cond}))) aotpack_refuse({nodes}, {_literal(msg)});")

    with patched(_ID, cpp.CppKernel, "device_assert_async", checked):
        yield


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    """Keep an exception of a loop body until all regions of its kernel have been left.

    Inductor records divisions by zero in a variable that all threads of a process share, so that
    two simultaneous calls may exchange them. Without that variable such divisions throw as other
    checks do.
    """
    body: Callable[..., Any] = cpp.CppKernelProxy.gen_body
    finalize: Callable[..., Any] = cpp.KernelGroup.finalize_kernel
    group: Callable[..., str] = cpp.KernelGroup.codegen_group
    buffer: Callable[[], Any] = getattr(cpp, "BracesBuffer")  # noqa: B009
    in_group: list[bool] = []

    def finalized(kernels: cpp.KernelGroup, *args: Any) -> None:
        in_group.append(True)
        try:
            finalize(kernels, *args)
        finally:
            in_group.pop()

    def kept(proxy: cpp.CppKernelProxy, code: Any = None) -> None:
        inner = buffer()
        body(proxy, inner)
        if not in_group or not _THROWS.search(inner.getvalue()):
            code.splice(inner)
            return
        code.writeline("try")
        with code.indent():
            code.splice(inner)
        code.writeline("catch (...)")
        with code.indent():
            code.writeline("aotpack_failure.keep();")

    def grouped(kernels: cpp.KernelGroup, *args: Any, **kwargs: Any) -> str:
        source = group(kernels, *args, **kwargs)
        flag, shared = "std::atomic<int> inductor_cpu_integer_div_error{0};", "inductor_cpu_integer_div_error_flag = "
        lines = source.split("\n")
        lines = [line for line in lines if shared not in line and "inductor_cpu_throw_if_integer_div_error" not in line]
        if "aotpack_failure." not in source:
            return "\n".join(line for line in lines if flag not in line)
        start = next(i for i, line in enumerate(lines) if flag in line)
        end = next(i for i in reversed(range(len(lines))) if lines[i].strip() == "}")
        lines[end] = f"aotpack_failure.raise();\n{lines[end]}"
        lines[start] = "AotpackFailure aotpack_failure;"
        return "\n".join(lines)

    with (
        replaced(_ID, cpp.CppKernelProxy, "gen_body", kept),
        replaced(_ID, cpp.KernelGroup, "finalize_kernel", finalized),
        replaced(_ID, cpp.KernelGroup, "codegen_group", grouped),
    ):
        yield


_DERIVED = "Runtime assertion failed for expression"
"""How the message of an assertion starts that tracing derived from others."""


def _own_assertions(assertion: ir.AssertScalar, wrapper: Any) -> None:
    """Before an assertion of torch, write the graph's own assertions about the same numbers, with
    the graph's messages.

    Where a number is read, torch asserts what follows from all of the graph's assertions (``u0 >=
    3``), with its own messages.
    """
    numbers = assertion.get_free_symbol_uses(unbacked_only=True)
    graph: Graph = virtualized.V.graph.module.graph  # type: ignore[assignment]
    asserts = graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    for node in sorted(asserts, key=lambda node: str(node.args[1]).startswith(_DERIVED)):  # the model's own messages first
        asserted, message = node.args
        value = asserted.meta["val"] if isinstance(asserted, Node) else asserted
        expression = getattr(getattr(value, "node", None), "_expr", None)  # not simplified by the assertion itself
        if isinstance(message, str) and expression is not None and free_unbacked_symbols(expression) <= numbers:
            condition = wrapper.codegen_cpp_sizevar(expression, simplify=False)
            wrapper.writeline(f"if (!({condition})) {{ throw std::runtime_error({_literal(message)}); }}")


def _nodes(looking: re.Pattern[str]) -> tuple[str, str]:
    """The nodes behind the generated code that check values, as a literal (``name=operator,…``),
    and whether no index wraps.
    """
    current = getattr(virtualized.V.kernel, "current_node", None)
    origins = sorted(getattr(getattr(current, "node", None), "origins", ()), key=str)
    found = [node for node in origins if looking.search(str(node.target))] or origins
    exact = bool(found) and all(str(operator_of(node)).startswith(_AS_GIVEN) for node in found)
    return _literal(",".join(f"{node.name}={operator_of(node)}" for node in found)), str(exact).lower()


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
