// Products of matrices by oneDNN, for builds that measured it to be faster than the library that torch calls.
// generated_sources.py puts this file before generated code that needs it, with the constant `aotpack_products_from`.

#include <torch/csrc/inductor/aoti_torch/c/shim_cpu.h>

#include <algorithm>
#include <cstdint>
#include <exception>

// at::native::mkldnn_matmul(first, second, result, beta, alpha). A torch without this function multiplies as before.
extern "C" void aotpack_matmul(const void*, const void*, const void*, float, float)
    __asm__("_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff") __attribute__((weak));

namespace aotpack {

// A matrix of float32 whose rows or columns are contiguous and do not overlap.
struct Matrix {
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0;
  bool is_plain = false;

  explicit Matrix(AtenTensorHandle tensor) {
    const Layout layout(tensor);
    if (layout.dims != 2 || !layout.is_float) {
      return;
    }
    rows = layout.sizes[0], columns = layout.sizes[1], row_stride = layout.strides[0], column_stride = layout.strides[1];
    is_plain = (column_stride == 1 && row_stride >= columns) || (row_stride == 1 && column_stride >= rows);
  }
};

// Whether oneDNN multiplies these.
static inline bool by_onednn(const Matrix& first, const Matrix& second, const Matrix& result) {
  return aotpack_matmul != nullptr && first.is_plain && second.is_plain && result.is_plain && first.columns > 0 &&
      first.rows * first.columns * second.columns >= aotpack_products_from;
}

[[maybe_unused]] static inline AOTITorchError mm_out(AtenTensorHandle out, AtenTensorHandle first, AtenTensorHandle second) {
  if (by_onednn(Matrix(first), Matrix(second), Matrix(out))) {
    try {
      aotpack_matmul(first, second, out, 0.0f, 1.0f);
      return AOTI_TORCH_SUCCESS;
    } catch (const std::exception&) { // a machine for which oneDNN has no code: the other library computes all again
    }
  }
  return aoti_torch_cpu_mm_out(out, first, second);
}

// The product, added to a row that is the same for all rows of the result.
[[maybe_unused]] static inline AOTITorchError addmm_out(
    AtenTensorHandle out, AtenTensorHandle added, AtenTensorHandle first, AtenTensorHandle second, double beta, double alpha) {
  const Matrix result(out);
  const Layout row(added);
  const bool is_row = row.is_float &&
      ((row.dims == 1 && row.sizes[0] == result.columns && row.strides[0] == 1) ||
       (row.dims == 2 && row.sizes[1] == result.columns && row.strides[1] == 1 && (row.sizes[0] == 1 || row.strides[0] == 0)));
  if (is_row && beta == 1 && alpha == 1 && result.column_stride == 1 && by_onednn(Matrix(first), Matrix(second), result)) {
    const float* from = floats_of(added);
    float* to = floats_of(out);
    for (int64_t index = 0; index < result.rows; ++index) {
      std::copy_n(from, result.columns, to + index * result.row_stride);
    }
    try {
      aotpack_matmul(first, second, out, 1.0f, 1.0f);
      return AOTI_TORCH_SUCCESS;
    } catch (const std::exception&) {
    }
  }
  return aoti_torch_cpu_addmm_out(out, added, first, second, beta, alpha);
}

} // namespace aotpack
