#include "method.h"

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>

#include <cstring>

namespace aotpack {

namespace {

constexpr size_t kFewBytes = 1 << 14;

// The first address that a tensor covers, and the address after its last.
// Twin: runtime/memory.py, span.
std::pair<const char*, const char*> span(const Tensor& tensor) {
  const auto* start = static_cast<const char*>(tensor.const_data_ptr());
  if (tensor.numel() == 0) {
    return {start, start};
  }
  int64_t last = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return {start, start + last * static_cast<int64_t>(tensor.element_size())};
}

// A8. Twin: runtime/memory.py, overlap.
bool may_overlap(const Tensor& a, const Tensor& b) {
  const auto [start, stop] = span(a);
  const auto [low, high] = span(b);
  return low < stop && start < high;
}

// Whether two tensors are views of one tensor, which counts the writes to either.
// R3. Twin: runtime/identity.py, _have_one_base.
bool have_one_base(const Tensor& a, const Tensor& b) {
  return a.is_view() && b.is_view() && a._base().is_same(b._base());
}

// Detaches outputs that eager returns as non-views, if the forward has returned a view or a primal instead. Autograd rejects
// in-place changes of a node's result that is a view. Outputs that were one tensor stay one tensor.
// R10. Twin: runtime/views.py, detach_outputs.
void detach_outputs(const Method& method, const variable_list& primals, variable_list& outputs) {
  std::vector<std::pair<Tensor, Tensor>> made;
  for (size_t position : method.detached_outputs) {
    Tensor& output = outputs.at(position);
    if (output.is_view() || std::any_of(primals.begin(), primals.end(), [&](const Tensor& x) { return x.is_same(output); })) {
      auto same = std::find_if(made.begin(), made.end(), [&](const auto& pair) { return pair.first.is_same(output); });
      if (same == made.end()) {
        same = made.emplace(made.end(), output, output.detach());
      }
      output = same->second;
    }
  }
}

// Outputs that require no gradient in a call with these primals.
// Twin: runtime/autograd.py, Differentiable.
std::unordered_set<c10::TensorImpl*> without_gradient(
    const Differentiable& differentiable, const variable_list& arguments, const variable_list& outputs) {
  std::unordered_set<c10::TensorImpl*> found;
  const auto visible = [&](size_t i) { return outputs.at(differentiable.visible.at(i)).unsafeGetTensorImpl(); };
  for (size_t i : differentiable.non_differentiable) {
    found.insert(visible(i));
  }
  for (const Tangent& tangent : differentiable.tangents) {
    const Positions& from = tangent.sources;
    if (std::none_of(from.begin(), from.end(), [&](size_t i) { return arguments.at(i).requires_grad(); })) {
      found.insert(visible(tangent.position));
    }
  }
  return found;
}

variable_list run_without_gradients(const Method& method, const variable_list& primals) {
  at::AutoGradMode off(false);
  variable_list outputs = method.forward->run(variable_list(primals));
  detach_outputs(method, primals, outputs);
  return outputs;
}

// Runs the forward, and attaches the outputs that require a gradient to autograd.
// Twin: runtime/autograd.py, Differentiable.
variable_list run_with_gradients(const Method& method, const variable_list& primals) {
  const Differentiable& differentiable = *method.differentiable;
  variable_list arguments = primals;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (differentiable.detached.at(i) && arguments[i].requires_grad()) {
      arguments[i] = arguments[i].detach();
    }
  }
  auto step = c10::make_intrusive<Step>(method.differentiable, torch::autograd::collect_next_edges(arguments));
  variable_list outputs, raw;
  std::unordered_set<c10::TensorImpl*> non_differentiable;
  {
    at::AutoGradMode off(false);
    outputs = method.forward->run(variable_list(arguments));
    raw = outputs;
    detach_outputs(method, arguments, outputs);
    non_differentiable = without_gradient(differentiable, arguments, outputs);
  }
  attach(method.differentiable, step, arguments, non_differentiable, outputs);
  step->save(arguments, raw);
  return outputs;
}

// Whether a write copies only a few bytes: the checks of Tensor::copy_ take several times as long as such a copy.
bool is_plain_copy(const Tensor& to, const Tensor& from) {
  return to.key_set() == ordinary_keys() && from.key_set() == ordinary_keys() && !to.requires_grad() && !from.requires_grad() &&
      to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && to.is_contiguous() && from.is_contiguous() &&
      to.nbytes() <= kFewBytes;
}

// R1. Twin: runtime/mutations.py, Mutations.
void write_back(const Method& method, const variable_list& primals, const variable_list& outputs) {
  for (const Mutation& mutation : method.mutations) {
    const Tensor& owner = primals.at(mutation.primal);
    const Tensor& value = outputs.at(mutation.output);
    const auto before = owner._version();
    if (is_plain_copy(owner, value)) {
      std::memmove(owner.mutable_data_ptr(), value.const_data_ptr(), owner.nbytes());
      torch::autograd::impl::bump_version(owner);
    } else {
      // A leaf that requires a gradient can only have been written to without autograd's knowledge.
      const bool is_hidden = mutation.hidden_from_autograd || (owner.requires_grad() && owner.is_leaf());
      (is_hidden ? owner.detach() : owner).copy_(value);
    }
    if (mutation.unversioned) {
      c10::VariableVersion counter = torch::autograd::impl::version_counter(owner);
      counter.set_version(before);
    }
  }
  for (size_t position : method.touched) {
    torch::autograd::impl::bump_version(primals.at(position));
  }
}

} // namespace

// No mode is active: autocast, inference mode, a transform, a tracer, a torch mode, or hooks on saved tensors.
// A9, A11. Twin: runtime/modes.py, Modes.
bool takes_modes(const Method& method) {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  // Some traces leave "dense" behind, of no backend. It changes nothing for tensors that are dense.
  const auto included = keys.included_ - c10::DispatchKeySet(c10::DispatchKey::Dense);
  return included == c10::default_included_set && keys.excluded_ == c10::default_excluded_set &&
      !at::impl::torch_function_mode_enabled() && at::SavedTensorDefaultHooks::get_tls_state().stack.empty() &&
      !(method.nondeterministic && at::globalContext().deterministicAlgorithms()) &&
      !torch::autograd::ForwardADLevel::try_get_by_idx(0);
}

// A8, A22. Twin: runtime/identity.py, Memory; runtime/mutations.py, WrittenLeaves.
bool takes_memory(const Method& method, const Values& values, bool grad) {
  for (size_t i : method.written_leaves) {
    const Tensor& written = *values.at(i);
    if (grad && written.requires_grad() && (written.is_view() ? written._base() : written).is_leaf()) {
      return false;
    }
  }
  return std::none_of(method.must_not_overlap.begin(), method.must_not_overlap.end(), [&](const auto& pair) {
    const Tensor &one = *values.at(pair.first), &other = *values.at(pair.second);
    return may_overlap(one, other) || have_one_base(one, other);
  });
}

// Twin: runtime/call.py, MethodCall.
Called call(const Method& method, variable_list&& primals, bool grad) {
  Called called{std::move(primals), {}};
  const bool with_gradients = grad && method.differentiable &&
      std::any_of(called.primals.begin(), called.primals.end(), [](const Tensor& primal) { return primal.requires_grad(); });
  called.outputs = with_gradients ? run_with_gradients(method, called.primals) : run_without_gradients(method, called.primals);
  write_back(method, called.primals, called.outputs);
  return called;
}

} // namespace aotpack
