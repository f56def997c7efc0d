"""Gives results of kernels the strides that the compiled code around them expects.

For operators without code of its own Inductor calls ATen's kernels and those of users' operators.
It takes the strides of their results from fake kernels. Torch's own are known to be right on this
CPU (``fix_fake_strides``); a user's may be wrong. AOTInductor checks them only if an environment
variable is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._inductor import ir, mkldnn_ir, virtualized
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

from ...api.patching import patched, replaced

_FUNCTION = """
// A kernel's result with the strides that this code reads it by: itself, or a copy where the kernel chose others.
static inline void aotpack_lay_out(
    torch::aot_inductor::RAIIAtenTensorHandle& tensor,
    std::initializer_list<int64_t> sizes,
    std::initializer_list<int64_t> strides,
    const char* name) {
  int64_t rank, *own_sizes, *own_strides;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &rank));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &own_sizes));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &own_strides));
  if (rank != (int64_t)sizes.size() || !std::equal(sizes.begin(), sizes.end(), own_sizes)) {
    throw std::runtime_error(std::string(name) + " returned other sizes than its fake kernel told when the bundle was built");
  }
  bool same = true;
  for (int64_t i = 0; i < rank; i++) {
    if (own_sizes[i] == 0) return;
    same = same && (own_sizes[i] == 1 || own_strides[i] == strides.begin()[i]);
  }
  if (same) return;
  int32_t dtype, device, index;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &dtype));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor, &device));
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor, &index));
  AtenTensorHandle copy;
  AOTI_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(rank, sizes.begin(), strides.begin(), dtype, device, index, &copy));
  torch::aot_inductor::RAIIAtenTensorHandle owned(copy);
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(owned, tensor, 0));
  tensor = std::move(owned);
}
"""


@contextlib.contextmanager
def check_kernel_strides() -> Iterator[None]:
    """Compile code that copies a kernel's result if its strides are not those that the code was
    compiled for.

    If sizes differ the code raises: the fake kernel of a user's operator is wrong.
    """

    codegen = ir.FallbackKernel.codegen

    def queued(kernel: ir.ExternKernel, wrapper: Any) -> None:
        tags = getattr(kernel.op_overload, "tags", ())
        if torch.Tag.inplace_view in tags or _is_workspace(kernel):  # its result is its argument; nothing else reads it
            return
        size, stride = map(wrapper.codegen_shape_tuple, (kernel.get_size(), kernel.get_stride()))
        wrapper.write_assert_size_stride(kernel.get_name(), size, stride, kernel.get_op_name())

    def generated(kernel: ir.FallbackKernel, wrapper: Any) -> None:
        codegen(kernel, wrapper)
        if kernel.use_runtime_dispatch and isinstance(kernel.layout, ir.Layout):  # for these Inductor asserts nothing
            queued(kernel, wrapper)

    def emitted(wrapper: Any, code: Any, name: str, size: str, stride: str, op_name: str, dtype: Any = None) -> None:
        if not virtualized.V.graph.is_const_graph:
            if _FUNCTION not in wrapper.header.getvalue():
                wrapper.header.splice(_FUNCTION)
            code.writeline(f'aotpack_lay_out({name}, {size}, {stride}, "{op_name}");')

    with (
        replaced("inductor-strides-of-kernels", ir.ExternKernel, "codegen_size_asserts", queued),
        replaced("inductor-strides-of-kernels", ir.FallbackKernel, "codegen", generated),
        patched("inductor-strides-of-kernels", CppWrapperCpu, "_codegen_assert_size_stride", emitted),
    ):
        yield


def _is_workspace(kernel: ir.ExternKernel) -> bool:
    """Whether a result is what oneDNN's kernel for an LSTM keeps for its gradient: its size depends
    on the processor.
    """
    return (
        isinstance(kernel, ir.MultiOutput)
        and isinstance(kernel.inputs[0], mkldnn_ir.MkldnnRnnLayer)
        and kernel.indices == [(tuple, 3)]
    )
