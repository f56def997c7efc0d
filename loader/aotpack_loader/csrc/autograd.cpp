#include "autograd.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/version.h>

namespace aotpack {

using torch::autograd::SavedVariable;

// The incoming gradient with the strides that the backward was compiled for; zeros if it is undefined.
// R2. Twin: runtime/backward_inputs.py, Tangent.
Tensor Tangent::operator()(Tensor&& gradient) const {
  if (gradient.defined() && gradient.strides() == stride) {
    return std::move(gradient);
  }
  Tensor fresh = at::empty_strided(shape, stride, at::TensorOptions(kDevice).dtype(dtype));
  return gradient.defined() ? fresh.copy_(gradient) : fresh.zero_();
}

namespace {

// The node of the gradients under create_graph: raises if a second derivative is computed.
// R5. Twin: runtime/refused_gradients.py, _SecondDerivative.
class SecondDerivative : public Node {
 public:
  SecondDerivative(const Host& host, edge_list&& edges) : Node(std::move(edges)), host_(host) {}

  variable_list apply(variable_list&&) override {
    host_.refuse(Refusal::second_derivative, {}, {});
    return {}; // not reached: compilers do not see it of a virtual function
  }

  std::string name() const override {
    return "AotpackSecondDerivative";
  }

 private:
  const Host& host_;
};

// Compiled code reads memory directly, so lazy conjugation and negation are resolved, and other kinds of tensors rejected.
Tensor readable(Tensor&& gradient, const Host& host) {
  if (gradient.is_conj() || gradient.is_neg()) {
    gradient = gradient.resolve_conj().resolve_neg();
  }
  const bool is_plain = gradient.device().type() == kDevice && gradient.layout() == at::kStrided &&
      !gradient.key_set().has(c10::DispatchKey::Python) && gradient.has_storage();
  if (!is_plain) {
    host.refuse(Refusal::unreadable_gradient, {}, gradient);
  }
  return std::move(gradient);
}

// Runs before all hooks on outputs of a node. Raises if one of them should see the gradient of another output: the gradient of
// an output does not pass the outputs that it is computed from.
// R12. Twin: runtime/result_sources.py, Watch.
class DerivedOutputHook : public torch::autograd::FunctionPreHook {
 public:
  DerivedOutputHook(std::shared_ptr<const Differentiable> method, Node& node) : method_(std::move(method)), node_(node) {}

  variable_list operator()(const variable_list& gradients) override {
    for (const DerivedOutput& derived : method_->derived_outputs) {
      if (gradients.at(derived.output).defined() && is_awaited(derived.source)) {
        method_->host->refuse(Refusal::derived_output, {derived.source_path, derived.path}, {});
      }
    }
    return gradients;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {
    method_->host->refuse(Refusal::compiled_autograd, {}, {});
  }

 private:
  // Whether the caller waits for the gradient of this output: with retain_grad(), torch.autograd.grad or a hook.
  bool is_awaited(size_t output) const {
    const auto& hooks = node_.tensor_pre_hooks();
    return node_.retains_grad_hooks().count(output) != 0 || is_captured(output) ||
        std::any_of(hooks.begin(), hooks.end(), [&](const auto& hook) { return method_->host->waits_for(*hook, output); });
  }

  bool is_captured(size_t output) const {
    const auto* running = torch::autograd::get_current_graph_task_exec_info();
    if (running == nullptr || running->empty()) {
      return false;
    }
    const auto found = running->find(&node_);
    if (found == running->end() || !found->second.captures_) {
      return false;
    }
    const auto& captures = *found->second.captures_;
    return std::any_of(captures.begin(), captures.end(), [&](const auto& one) { return one.input_idx_ == int(output); });
  }

  std::shared_ptr<const Differentiable> method_;
  Node& node_; // it owns this hook
};

// Attaches outputs by torch's own function. From torch 2.14 on it also returns the node that it attached.
std::vector<std::optional<Tensor>> wrap_outputs(
    const variable_list& arguments,
    const std::unordered_set<c10::TensorImpl*>& non_differentiable,
    const std::vector<std::optional<Tensor>>& visible,
    const c10::intrusive_ptr<Step>& step) {
  const auto forward_mode = [](const variable_list&, const variable_list&) -> variable_list {
    TORCH_CHECK(false, "a native call has no forward-mode gradients");
  };
  const auto view_as_self = [](const Tensor& x) { return x.view_as(x); };
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  c10::intrusive_ptr<Node> attached;
  return torch::autograd::_wrap_outputs(arguments, non_differentiable, {}, visible, step, forward_mode, {}, view_as_self, false, attached);
#else
  return torch::autograd::_wrap_outputs(arguments, non_differentiable, {}, visible, step, forward_mode, {}, view_as_self, false);
#endif
}

} // namespace

// R3. Twin: runtime/autograd.py, _save.
void Step::save(const variable_list& primals, const variable_list& outputs) {
  for (const Saved& saved : method_->saved) {
    if (saved.kind == SavedKind::unchecked_output) {
      unchecked_.push_back(outputs.at(saved.position));
    } else if (saved.kind != SavedKind::size) {
      Tensor value = saved.kind == SavedKind::primal ? primals.at(saved.position) : outputs.at(saved.position);
      if (saved.kind == SavedKind::checked_output && value.is_view()) {
        value = value.detach();
      }
      const bool is_output = value.grad_fn().get() == this;
      checked_.emplace_back(value, is_output);
    }
  }
}

// Compiled autograd calls this. It was off during the call, otherwise Python would have made the call.
void Step::compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const {
  method_->host->refuse(Refusal::compiled_autograd, {}, {});
}

// R2. Twin: runtime/autograd.py, _gradients.
variable_list Step::apply(variable_list&& incoming) {
  const Differentiable& method = *method_;
  std::vector<bool> received;
  for (const Tangent& tangent : method.tangents) {
    received.push_back(incoming.at(tangent.position).defined());
  }
  if (std::find(received.begin(), received.end(), true) == received.end()) {
    return variable_list(method.gradients.size());
  }
  const bool again = at::GradMode::is_enabled(); // create_graph
  const edge_list above = again ? torch::autograd::collect_next_edges(incoming) : edge_list();
  variable_list results;
  {
    at::AutoGradMode off(false);
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU); // the graph contains its own casts
    variable_list arguments = unpack();
    for (const Tangent& tangent : method.tangents) {
      Tensor& gradient = incoming[tangent.position];
      if (gradient.defined() && method.backward->reads_memory()) {
        gradient = readable(std::move(gradient), *method.host);
      }
      arguments.push_back(tangent(std::move(gradient)));
    }
    results = method.backward->run(std::move(arguments));
  }
  if (again) {
    refuse_second_derivatives(results, above);
  }
  for (size_t i = 0; i < method.depends.size(); ++i) {
    const Positions& needed = method.depends[i];
    if (!needed.empty() && std::none_of(needed.begin(), needed.end(), [&](size_t tangent) { return received.at(tangent); })) {
      results.at(i) = Tensor(); // eager returns no gradient, not zeros
    }
  }
  variable_list found(method.gradients.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (method.gradients[i]) {
      found[i] = results.at(*method.gradients[i]);
    }
  }
  return found;
}

void Step::release_variables() {
  std::lock_guard<std::mutex> lock(mutex_);
  release();
}

// The backward's saved inputs, in order. Afterwards only these references hold them, unless the graph is retained.
// R4, X7. Twin: runtime/autograd.py, _unpack.
variable_list Step::unpack() {
  std::lock_guard<std::mutex> lock(mutex_);
  variable_list found;
  auto checked = checked_.begin();
  for (const Saved& saved : method_->saved) {
    const bool is_checked = saved.kind == SavedKind::primal || saved.kind == SavedKind::checked_output;
    found.push_back(is_checked ? unpacked(saved, *checked++) : saved.carrier);
  }
  if (released_) {
    method_->host->refuse(Refusal::released, {}, {});
  }
  auto unchecked = unchecked_.begin();
  for (size_t i = 0; i < found.size(); ++i) {
    if (method_->saved[i].kind == SavedKind::unchecked_output) {
      found[i] = *unchecked++;
    }
  }
  if (!torch::autograd::get_current_graph_task_keep_graph()) {
    release();
    return found;
  }
  for (size_t position : method_->donated) {
    found.at(position) = found.at(position).clone();
  }
  return found;
}

// R3. Twin: runtime/refused_gradients.py, changed_error.
Tensor Step::unpacked(const Saved& saved, SavedVariable& value) {
  try {
    return value.unpack(getptr());
  } catch (const c10::Error&) { // freed, or changed in place
    if (!released_) {
      method_->host->refuse(Refusal::changed_in_place, {saved.name}, {});
    }
    throw;
  }
}

void Step::release() {
  for (SavedVariable& value : checked_) {
    value.reset_data();
  }
  unchecked_.clear();
  released_ = true;
}

// Gradients under create_graph: their values can be used; differentiating them again raises.
// R5. Twin: runtime/refused_gradients.py, refuse_second_derivative.
void Step::refuse_second_derivatives(variable_list& results, const edge_list& above) const {
  edge_list edges;
  for (const edge_list* all : {&next_edges(), &above}) {
    std::copy_if(all->begin(), all->end(), std::back_inserter(edges), [](const auto& edge) { return edge.is_valid(); });
  }
  auto second = c10::make_intrusive<SecondDerivative>(*method_->host, std::move(edges));
  for (Tensor& result : results) {
    if (!result.defined() || !torch::autograd::isDifferentiableType(result.scalar_type())) {
      continue;
    }
    result = result.detach(); // it may be an incoming gradient itself
    const auto number = second->add_input_metadata(result);
    torch::autograd::impl::set_gradient_edge(result, {second, number});
  }
}

// Twin: runtime/autograd.py, _Step.
void attach(
    const std::shared_ptr<const Differentiable>& differentiable,
    const c10::intrusive_ptr<Step>& step,
    const variable_list& arguments,
    const std::unordered_set<c10::TensorImpl*>& non_differentiable,
    variable_list& outputs) {
  const Positions& visible = differentiable->visible;
  const auto is_fresh = [&](size_t position) {
    const Tensor& value = outputs.at(position);
    return !value.requires_grad() && !value.is_view() &&
        std::none_of(arguments.begin(), arguments.end(), [&](const Tensor& argument) { return argument.is_same(value); });
  };
  if (std::all_of(visible.begin(), visible.end(), is_fresh)) { // _wrap_outputs would do only this
    for (size_t position : visible) {
      const Tensor& value = outputs[position];
      const auto number = step->add_input_metadata(value);
      if (torch::autograd::isDifferentiableType(value.scalar_type()) && non_differentiable.count(value.unsafeGetTensorImpl()) == 0) {
        torch::autograd::impl::set_gradient_edge(value, {step, number});
      }
    }
  } else {
    std::vector<std::optional<Tensor>> values;
    for (size_t position : visible) {
      values.emplace_back(outputs.at(position));
    }
    const auto wrapped = wrap_outputs(arguments, non_differentiable, values, step);
    for (size_t i = 0; i < wrapped.size(); ++i) {
      outputs[visible[i]] = *wrapped[i];
    }
  }
  if (!differentiable->derived_outputs.empty()) {
    step->add_tensor_pre_hook(std::make_unique<DerivedOutputHook>(differentiable, *step));
  }
}

} // namespace aotpack
