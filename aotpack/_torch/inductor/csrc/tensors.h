// The layout and the elements of a tensor. generated_sources.py puts this file before functions of ours that need it.

#ifndef AOTPACK_TENSORS_H
#define AOTPACK_TENSORS_H

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>

namespace aotpack {

// The sizes and strides, in elements, are valid as long as the tensor.
struct Layout {
  int64_t dims = 0;
  const int64_t *sizes = nullptr, *strides = nullptr;
  bool is_float = false; // of 32 bits

  explicit Layout(AtenTensorHandle tensor) {
    int32_t type = 0;
    int64_t *own_sizes = nullptr, *own_strides = nullptr;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &type));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &dims));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &own_sizes));
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &own_strides));
    sizes = own_sizes, strides = own_strides, is_float = type == aoti_torch_dtype_float32();
  }
};

// The elements of a tensor of float32.
static inline float* floats_of(AtenTensorHandle tensor) {
  void* memory = nullptr;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor, &memory));
  return static_cast<float*>(memory);
}

} // namespace aotpack

#endif
