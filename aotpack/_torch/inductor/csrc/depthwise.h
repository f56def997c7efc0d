// Gradients of depthwise convolutions with windows of 5, 7, 9 or 11 columns, on channels-last images of float32. For the weights
// oneDNN copies all windows of an image, which takes 3 to 10 times as long, and their memory: 49 times the image's for windows of
// 7 by 7. generated_sources.py puts this file before generated code that needs it.

#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#pragma GCC push_options
#pragma GCC optimize("O3") // the calls of kernels around this file are compiled in less time, with few optimizations
namespace aotpack {

// A convolution of two dimensions: sizes and strides of both, in elements of an image.
struct Window {
  int64_t batch, channels, height, width, rows, columns; // of the image, then of the result
  std::array<int64_t, 2> stride, padding, dilation;
};

using Lanes = float __attribute__((vector_size(64), aligned(4)));
constexpr int64_t kLanes = 16;

static inline Lanes lanes_at(const float* from) {
  Lanes found;
  std::memcpy(&found, from, sizeof(found));
  return found;
}

// The first `count` lanes; the others are 0.
static inline Lanes lanes_at(const float* from, int64_t count) {
  if (count == kLanes) {
    return lanes_at(from);
  }
  Lanes found{};
  std::memcpy(&found, from, count * sizeof(float));
  return found;
}

// Adds the products of consecutive results with the pixels in each column of their windows, which must all be inside of the image.
// The sums are in registers, because all indices are constants.
template <int... kColumn>
static inline void add_products(
    Lanes* sum, const float* result, int64_t to_next, const float* pixel, int64_t step, int64_t apart, int64_t count,
    std::integer_sequence<int, kColumn...>) {
  Lanes found[] = {sum[kColumn]...};
  for (; count > 0; --count, result += to_next, pixel += step) {
    const Lanes one = lanes_at(result);
    ((found[kColumn] += one * lanes_at(pixel + kColumn * apart)), ...);
  }
  ((sum[kColumn] = found[kColumn]), ...);
}

// The gradient of one row of windows, for up to 16 channels: into[column of the window][channel].
template <int kColumns>
__attribute__((noinline)) static void window_row(
    const float* gradient, const float* image, const Window& window, int64_t row, int64_t channel, float (*into)[kLanes]) {
  const int64_t count = std::min(kLanes, window.channels - channel);
  const int64_t step = window.stride[1], apart = window.dilation[1], before = window.padding[1];
  // Results whose windows are inside of the image in all columns
  const int64_t first = std::min(window.columns, (before + step - 1) / step);
  const int64_t last = window.width - 1 + before - (kColumns - 1) * apart;
  const int64_t end = last < 0 ? first : std::max(first, std::min(window.columns, last / step + 1));
  Lanes total[kColumns] = {};
  for (int64_t item = 0; item < window.batch; ++item) {
    for (int64_t y = 0; y < window.rows; ++y) {
      const int64_t from = y * window.stride[0] + row * window.dilation[0] - window.padding[0];
      if (from < 0 || from >= window.height) {
        continue;
      }
      const float* results = gradient + ((item * window.rows + y) * window.columns) * window.channels + channel;
      const float* pixels = image + ((item * window.height + from) * window.width) * window.channels + channel;
      Lanes sum[kColumns] = {}; // of this row; the sum of rows is more exact than one of all elements
      const auto at_edge = [&](int64_t x) {
        const Lanes result = lanes_at(results + x * window.channels, count);
        for (int column = 0; column < kColumns; ++column) {
          const int64_t pixel = x * step + column * apart - before;
          if (pixel >= 0 && pixel < window.width) {
            sum[column] += result * lanes_at(pixels + pixel * window.channels, count);
          }
        }
      };
      for (int64_t x = 0; x < first; ++x) {
        at_edge(x);
      }
      if (count == kLanes) {
        add_products(
            sum, results + first * window.channels, window.channels, pixels + (first * step - before) * window.channels,
            step * window.channels, apart * window.channels, end - first, std::make_integer_sequence<int, kColumns>());
      } else {
        for (int64_t x = first; x < end; ++x) {
          at_edge(x);
        }
      }
      for (int64_t x = std::max(first, end); x < window.columns; ++x) {
        at_edge(x);
      }
      for (int column = 0; column < kColumns; ++column) {
        total[column] += sum[column];
      }
    }
  }
  std::memcpy(into, total, sizeof(total));
}

template <int kColumns>
static void weight_gradient(const float* gradient, const float* image, const Window& window, int64_t window_rows, float* into) {
  const int64_t blocks = (window.channels + kLanes - 1) / kLanes;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t row = 0; row < window_rows; ++row) {
      float found[kColumns][kLanes];
      window_row<kColumns>(gradient, image, window, row, block * kLanes, found);
      for (int64_t lane = 0; lane < std::min(kLanes, window.channels - block * kLanes); ++lane) {
        for (int column = 0; column < kColumns; ++column) {
          into[((block * kLanes + lane) * window_rows + row) * kColumns + column] = found[column][lane];
        }
      }
    }
  }
}

// The sums of a gradient's channels.
static inline void bias_gradient(const float* gradient, const Window& window, float* into) {
  std::fill_n(into, window.channels, 0.0f);
  const int64_t blocks = (window.channels + kLanes - 1) / kLanes;
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t start = block * kLanes, count = std::min(kLanes, window.channels - start);
    for (int64_t row = 0; row < window.batch * window.rows; ++row) {
      Lanes sum{};
      for (int64_t x = 0; x < window.columns; ++x) {
        sum += lanes_at(gradient + (row * window.columns + x) * window.channels + start, count);
      }
      for (int64_t lane = 0; lane < count; ++lane) {
        into[start + lane] += sum[lane];
      }
    }
  }
}

static bool is_image(const Layout& layout) {
  return layout.dims == 4 && layout.is_float;
}

static bool is_channels_last(const Layout& image) {
  const int64_t *sizes = image.sizes, dense[] = {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
  for (int dim = 0; dim < 4; ++dim) {
    if (sizes[dim] == 0 || (sizes[dim] != 1 && image.strides[dim] != dense[dim])) {
      return false;
    }
  }
  return true;
}

// The function for windows of as many columns, or null.
static decltype(&weight_gradient<5>) weight_gradient_for(int64_t columns) {
  switch (columns) {
    case 5:
      return weight_gradient<5>;
    case 7:
      return weight_gradient<7>;
    case 9:
      return weight_gradient<9>;
    case 11:
      return weight_gradient<11>;
    default:
      return nullptr;
  }
}

static inline AtenTensorHandle new_tensor(int64_t dims, const int64_t* sizes, const int64_t* strides) {
  AtenTensorHandle made = nullptr;
  AOTI_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dims, sizes, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, &made));
  return made;
}

// As aoti_torch_cpu_convolution_backward.
[[maybe_unused]] static AOTITorchError convolution_backward(
    AtenTensorHandle gradient,
    AtenTensorHandle input,
    AtenTensorHandle weight,
    const int64_t** bias_sizes,
    int64_t bias_sizes_len,
    const int64_t* stride,
    int64_t stride_len,
    const int64_t* padding,
    int64_t padding_len,
    const int64_t* dilation,
    int64_t dilation_len,
    int32_t transposed,
    const int64_t* output_padding,
    int64_t output_padding_len,
    int64_t groups,
    const int32_t* wanted,
    int64_t wanted_len,
    AtenTensorHandle* of_input,
    AtenTensorHandle* of_weight,
    AtenTensorHandle* of_bias) {
  const auto by_torch = [&](const int32_t* results) {
    return aoti_torch_cpu_convolution_backward(
        gradient, input, weight, bias_sizes, bias_sizes_len, stride, stride_len, padding, padding_len, dilation, dilation_len,
        transposed, output_padding, output_padding_len, groups, results, wanted_len, of_input, of_weight, of_bias);
  };
  const Layout result(gradient), image(input), kernel(weight);
  const bool is_plain = stride_len == 2 && padding_len == 2 && dilation_len == 2 && transposed == 0;
  const bool are_images = is_image(result) && is_image(image) && is_image(kernel);
  if (wanted[1] == 0 || !is_plain || !are_images || !is_channels_last(image) || !is_channels_last(result)) {
    return by_torch(wanted);
  }
  const int64_t rows = kernel.sizes[2], columns = kernel.sizes[3], channels = image.sizes[1];
  const auto add_up = weight_gradient_for(columns);
  if (add_up == nullptr || groups != channels || kernel.sizes[0] != channels || kernel.sizes[1] != 1) {
    return by_torch(wanted);
  }
  const std::array<int32_t, 3> rest = {wanted[0], 0, 0};
  *of_weight = nullptr;
  if (wanted[2] != 0) {
    *of_bias = nullptr;
  }
  if (const AOTITorchError error = by_torch(rest.data())) {
    return error;
  }
  const Window window = {
      image.sizes[0], channels, image.sizes[2], image.sizes[3], result.sizes[2], result.sizes[3],
      {stride[0], stride[1]}, {padding[0], padding[1]}, {dilation[0], dilation[1]}};
  const int64_t strides[] = {rows * columns, rows * columns, columns, 1}, step = 1;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_delete_tensor_object(*of_weight)); // an undefined tensor, or null
  *of_weight = new_tensor(4, kernel.sizes, strides);
  add_up(floats_of(gradient), floats_of(input), window, rows, floats_of(*of_weight));
  if (wanted[2] != 0) {
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_delete_tensor_object(*of_bias));
    *of_bias = new_tensor(1, &channels, &step);
    bias_gradient(floats_of(gradient), window, floats_of(*of_bias));
  }
  return AOTI_TORCH_SUCCESS;
}

} // namespace aotpack
#pragma GCC pop_options
