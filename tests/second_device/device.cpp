// A device that is not the CPU, for tests without a GPU: torch's PrivateUse1, with its memory on the host.
//
// Kernels are those of the CPU, on copies of their arguments there. As on a GPU, a kernel refuses a tensor that another
// device holds, except a number (a tensor without dimensions) of the CPU. Each of the devices has a generator of its own.

#include <array>
#include <cstdlib>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex DEVICES = 2;
thread_local c10::DeviceIndex current = 0;

// ---------------------------------------------------------------- memory

struct Memory final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? std::malloc(bytes) : nullptr;
    TORCH_CHECK(data || !bytes, "simulated device out of memory");
    return {data, data, &std::free, at::Device(TYPE, current)};
  }
  at::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(TYPE, &memory);

// ---------------------------------------------------------------- the current device, and streams that do nothing

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {TYPE, current}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < DEVICES, "there is no device ", device);
    if (device.has_index()) current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override { *event = &memory; }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---------------------------------------------------------------- random numbers

struct DeviceGenerator final : at::CPUGeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex index) {
    device_ = at::Device(TYPE, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

const at::Generator& generator(c10::DeviceIndex index) {
  static std::array<at::Generator, DEVICES> all{at::make_generator<DeviceGenerator>(0), at::make_generator<DeviceGenerator>(1)};
  return all.at(index < 0 ? current : index);
}

// ---------------------------------------------------------------- what torch asks of a backend

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex device) const override { Guard().setDevice({TYPE, device}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return Guard().exchangeDevice({TYPE, device}).index(); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(index < 0 ? current : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
  }
};
[[maybe_unused]] const bool hooked = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

// ---------------------------------------------------------------- operators of storage and views

at::Tensor empty(at::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided, "the simulated device has dense tensors alone");
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::SymIntArrayRef size, at::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, at::SymIntArrayRef size, at::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, at::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, at::SymIntArrayRef size, at::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize(const at::Tensor& self, at::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), format);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, c10::SymInt offset, at::SymIntArrayRef size, at::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(self, storage, offset.guard_int(__FILE__, __LINE__), C10_AS_INTARRAYREF_SLOW(size),
                                      C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_whole(at::Tensor& self, at::Storage storage) {
  int64_t size = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return at::native::set_storage_cpu_(self, storage, 0, {size}, {});
}

at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, &memory, true);
  return at::native::set_storage_cpu_(self, storage, 0, {0}, {});
}

// The same memory as a tensor of the CPU.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  auto& storage = tensor.storage();
  auto bytes = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
                                                     at::DataPtr(const_cast<void*>(storage.data()), c10::kCPU), nullptr, false);
  auto host = at::detail::make_tensor<c10::TensorImpl>(std::move(bytes), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  host.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) host._set_conj(true);
  if (tensor.is_neg()) host._set_neg(true);
  return host;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (!to.sizes().equals(self.sizes())) at::native::resize_(to, self.sizes(), std::nullopt);
  return copy_from(self, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) { return on_host(self).item(); }

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::SymIntArrayRef stride, at::SymIntArrayRef padding, at::SymIntArrayRef dilation, bool transposed,
                       at::SymIntArrayRef output_padding, c10::SymInt groups) {
  TORCH_CHECK(input.device() == weight.device(), "Expected all tensors to be on the same device");
  const auto host = bias && bias->defined() ? std::optional<at::Tensor>(on_host(*bias)) : std::nullopt;
  return at::convolution_symint(on_host(input), on_host(weight), host, stride, padding, dilation, transposed, output_padding, groups)
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::SymIntArrayRef stride,
    at::SymIntArrayRef padding, at::SymIntArrayRef dilation, bool transposed, at::SymIntArrayRef output_padding, c10::SymInt groups,
    std::array<bool, 3> wanted) {
  TORCH_CHECK(input.device() == weight.device(), "Expected all tensors to be on the same device");
  c10::SymInt channels = gradient.sym_size(1);
  auto [a, b, c] = at::convolution_backward_symint(on_host(gradient), on_host(input), on_host(weight), {{channels}}, stride, padding,
                                                   dilation, transposed, output_padding, groups, wanted);
  const auto there = [&](const at::Tensor& one) { return one.defined() ? one.to(input.device()) : one; };
  return {there(a), there(b), there(c)};
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Expected all tensors to be on the same device");
  return at::equal(on_host(self), on_host(other));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage", set_whole);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_", set_empty);
  m.impl("is_set_to", at::native::is_set_to);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("equal", equal);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

// A copy resolves conjugation and negation itself; torch would make a copy for that.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

// ---------------------------------------------------------------- all other operators

// Operators of torch that take some of their arguments on the CPU, whatever the device of the others.
bool takes_host(const std::string& name) {
  for (const char* known : {"aten::index.", "aten::index_put", "aten::_index_put_impl", "aten::_pack_padded_sequence",
                            "aten::_pad_packed_sequence", "aten::lstm.data", "aten::gru.data", "aten::rnn_tanh.data"}) {
    if (name.rfind(known, 0) == 0) return true;
  }
  return name == "aten::index" || name == "aten::index_put_";
}

// What selects among two others is on their device, even if it is a number.
bool takes_number(const std::string& name, size_t position) { return position || name.rfind("aten::where", 0) != 0; }

void require_here(const std::string& name, const at::Tensor& tensor, std::optional<at::Device>& device, size_t position) {
  if (!tensor.defined() || (tensor.is_cpu() && ((tensor.dim() == 0 && takes_number(name, position)) || takes_host(name)))) return;
  if (!device) device = tensor.device();
  TORCH_CHECK(tensor.device() == *device, "Expected all tensors to be on the same device, but found at least two devices, ", *device,
              " and ", tensor.device(), "! (in ", name, ")");
}

// The device's generator takes the place of the CPU's while the CPU's kernel draws from it.
struct Exchange {
  explicit Exchange(const at::Generator& ours) : ours_(ours), host_(at::detail::getDefaultCPUGenerator()) {
    before_ = host_.get_state();
    host_.set_state(ours_.get_state());
  }
  ~Exchange() {
    ours_.set_state(host_.get_state());
    host_.set_state(before_);
  }
  at::Generator ours_, host_;
  at::Tensor before_;
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto count = op.schema().arguments().size();
  const auto name = toString(op.operator_name());
  std::optional<at::Device> device;
  at::Generator drawn;
  const auto values = torch::jit::last(*stack, count);
  for (size_t position = 0; position < count; position++) {
    const auto& value = values[position];
    if (value.isTensor()) require_here(name, value.toTensor(), device, position);
    if (value.isTensorList()) {
      for (const at::Tensor& one : value.toTensorVector()) require_here(name, one, device, position);
    }
    if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector()) {
        if (one) require_here(name, *one, device, position);
      }
    }
  }
  for (size_t i = stack->size() - count; i < stack->size(); i++) {
    if ((*stack)[i].isGenerator()) {
      drawn = (*stack)[i].toGenerator();
      TORCH_CHECK(drawn.device().type() == TYPE, "Expected a '", at::Device(TYPE), "' generator, found ", drawn.device());
      (*stack)[i] = c10::IValue();
    }
  }
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return at::native::cpu_fallback(op, stack);
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  const Exchange exchange(drawn.defined() ? drawn : generator(device ? device->index() : -1));
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

// ---------------------------------------------------------------- sparse tensors, which hold two dense ones

void sparse_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack, false, c10::DispatchKey::SparseCPU);
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&sparse_fallback>()); }
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", at::native::new_with_dims_and_tensor_sparse_symint);
  m.impl("_sparse_coo_tensor_with_dims", at::native::new_with_dims_sparse);
  m.impl("sparse_dim", at::native::sparse_dim_sparse);
  m.impl("dense_dim", at::native::dense_dim_sparse);
  m.impl("_nnz", at::native::_nnz_sparse);
  m.impl("_indices", at::native::_indices_sparse);
  m.impl("_values", at::native::_values_sparse);
  m.impl("is_coalesced", at::native::is_coalesced_sparse);
  m.impl("_coalesced_", at::native::_coalesced_sparse_);
  m.impl("clone", at::native::clone_sparse);
}

// ---------------------------------------------------------------- for torch.simulated, the device's module in Python

TORCH_LIBRARY(second_device, m) {
  m.def("current() -> int", []() -> int64_t { return current; });
  m.def("choose(int index) -> ()", [](int64_t index) { Guard().setDevice({TYPE, static_cast<c10::DeviceIndex>(index)}); });
  m.def("state(int index) -> Tensor", [](int64_t index) { return generator(static_cast<c10::DeviceIndex>(index)).get_state(); });
  m.def("set_state(int index, Tensor state) -> ()",
        [](int64_t index, const at::Tensor& state) {
          auto found = generator(static_cast<c10::DeviceIndex>(index));
          found.set_state(state);
        });
  m.def("seed(int index, int seed) -> ()", [](int64_t index, int64_t seed) {
    auto found = generator(static_cast<c10::DeviceIndex>(index));
    found.set_current_seed(static_cast<uint64_t>(seed));
  });
}

}  // namespace
