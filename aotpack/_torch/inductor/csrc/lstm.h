// oneDNN's kernel for a layer of an LSTM, as compiled code calls it. generated_sources.py puts this file
// before generated code that needs it, after tensors.h.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/c/shim_cpu.h>

#include <array>

namespace aotpack {

// A tensor with the same memory that autograd does not know.
class Unrecorded {
 public:
  explicit Unrecorded(AtenTensorHandle of) {
    const Layout layout(of);
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(of, layout.dims, layout.sizes, layout.strides, 0, &tensor_));
  }
  Unrecorded(const Unrecorded&) = delete;
  Unrecorded& operator=(const Unrecorded&) = delete;
  ~Unrecorded() {
    aoti_torch_delete_tensor_object(tensor_);
  }
  operator AtenTensorHandle() const {
    return tensor_;
  }

 private:
  AtenTensorHandle tensor_ = nullptr;
};

// The kernel keeps what its gradient needs only while gradients are recorded. Compiled code runs without recording.
class Recording {
 public:
  Recording() : before_(aoti_torch_grad_mode_is_enabled()) {
    aoti_torch_grad_mode_set_enabled(true);
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    aoti_torch_grad_mode_set_enabled(before_);
  }

 private:
  bool before_;
};

static inline AOTITorchError lstm_layer(
    AtenTensorHandle input,
    AtenTensorHandle weight0,
    AtenTensorHandle weight1,
    AtenTensorHandle weight2,
    AtenTensorHandle weight3,
    AtenTensorHandle hidden,
    AtenTensorHandle memory,
    int32_t reverse,
    const int64_t* batch_sizes,
    int64_t batch_sizes_length,
    int64_t mode,
    int64_t hidden_size,
    int64_t layers,
    int32_t has_biases,
    int32_t bidirectional,
    int32_t batch_first,
    int32_t train,
    AtenTensorHandle* rows,
    AtenTensorHandle* last_hidden,
    AtenTensorHandle* last_memory,
    AtenTensorHandle* workspace) {
  const auto run = [&](const std::array<AtenTensorHandle, 7>& given) {
    return aoti_torch_cpu_mkldnn_rnn_layer(
        given[0], given[1], given[2], given[3], given[4], given[5], given[6], reverse, batch_sizes, batch_sizes_length, mode,
        hidden_size, layers, has_biases, bidirectional, batch_first, train, rows, last_hidden, last_memory, workspace);
  };
  if (train == 0) { // no gradient: nothing is kept
    return run({input, weight0, weight1, weight2, weight3, hidden, memory});
  }
  const Unrecorded x(input), w0(weight0), w1(weight1), w2(weight2), w3(weight3), h(hidden), c(memory);
  const Recording recording;
  return run({x, w0, w1, w2, w3, h, c});
}

} // namespace aotpack
