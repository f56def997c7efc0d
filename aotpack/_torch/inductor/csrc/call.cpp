// Calls a method in native code, as loader/aotpack_loader/runtime/{call,inputs,state,autograd,epilogue}.py do, for the simplest
// methods and calls. runtime/native.py makes the description of the method. spec/targets.md documents both functions of this
// module.
//
// "Twin" names what computes the same in the loader's Python; a change of one is a change of both. Tests compare them on every
// row of the conformance table.
//
// It reports no errors of arguments. If anything does not fit or is unusual, it returns None before any code has run. Then the
// Python path makes the call or raises.

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/version.h>

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>

#include <cstring>

namespace {

using at::Tensor;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr int64_t kInterface = 2;
constexpr size_t kFewBytes = 1 << 14;
// The name of PyFunctionTensorPreHook. torch does not export its type, so the name stands for a dynamic_cast.
constexpr const char* kPythonHook = "N5torch8autograd23PyFunctionTensorPreHookE";

// A Python function that raises; its arguments are what is unsupported, and the gradient or the hooks concerned. Set once, never
// freed.
PyObject* refusal = nullptr;

[[noreturn]] void raise_python_error() {
  python_error error;
  error.persist();
  throw error;
}

[[noreturn]] void refuse(const char* what, const Tensor& gradient = {}) {
  py::gil_scoped_acquire gil;
  py::object value = gradient.defined() ? py::cast(gradient) : py::none();
  PyObject* result = PyObject_CallFunction(refusal, "sO", what, value.ptr());
  Py_XDECREF(result);
  raise_python_error();
}

// Raises if the hooks on a result are the caller's.
void refuse_hooks(const char* what, PyObject* hooks) {
  py::gil_scoped_acquire gil;
  THPObjectPtr result(PyObject_CallFunction(refusal, "sO", what, hooks));
  if (!result) {
    raise_python_error();
  }
}

// ---------------------------------------------------------------- compiled graphs

class Runner : public torch::inductor::AOTIModelContainerRunnerCpu, public std::enable_shared_from_this<Runner> {
 public:
  using AOTIModelContainerRunnerCpu::AOTIModelContainerRunnerCpu;

  size_t outputs() const {
    size_t count = 0;
    TORCH_CHECK(get_num_outputs_func_(container_handle_, &count) == 0, "compiled code does not tell how much it returns");
    return count;
  }
};

// A Python function that outlives the interpreter's lock: autograd drops nodes without it.
class Function {
 public:
  explicit Function(const py::object& function) : function_(function.inc_ref().ptr()) {}
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;
  ~Function() {
    if (Py_IsInitialized() != 0) {
      py::gil_scoped_acquire gil;
      Py_DECREF(function_);
    }
  }

  variable_list operator()(variable_list&& incoming) const {
    py::gil_scoped_acquire gil;
    THPObjectPtr arguments(THPVariable_WrapList(incoming));
    incoming.clear();
    THPObjectPtr results(PyObject_CallOneArg(function_, arguments.get()));
    if (!results) {
      python_error error;
      error.persist();
      throw error;
    }
    return THPVariable_UnpackList(results.get());
  }

  // Calls the function, which raises.
  void raise(const std::string& message) const {
    py::gil_scoped_acquire gil;
    THPObjectPtr text(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
    THPObjectPtr result(text ? PyObject_CallOneArg(function_, text.get()) : nullptr);
    if (!result) {
      python_error error;
      error.persist();
      throw error;
    }
  }

 private:
  PyObject* function_;
};

// Takes the values at some positions of a list, and empties the list.
struct Selection {
  Selection() = default;
  explicit Selection(std::vector<size_t> from) : positions(std::move(from)) {
    for (size_t i = 0; i < positions.size(); ++i) {
      in_order = in_order && positions[i] == i;
    }
  }

  variable_list operator()(variable_list&& from) const {
    if (in_order && from.size() == positions.size()) {
      return std::move(from);
    }
    variable_list found;
    found.reserve(positions.size());
    for (size_t position : positions) {
      found.push_back(from.at(position));
    }
    from.clear(); // an activation is freed as soon as the code has used it
    return found;
  }

  std::vector<size_t> positions;
  bool in_order = true; // 0, 1, 2, …
};

struct Sequence;

struct Executable {
  std::shared_ptr<Runner> runner; // null: the sequence or the function computes the graph
  std::shared_ptr<Function> function;
  Selection inputs; // indices of the graph's inputs
  Selection outputs; // indices of the code's results
  std::shared_ptr<Function> failed; // raises the Python exception for the message of a C++ exception; may be null
  std::shared_ptr<const Sequence> sequence; // the parts in which the graph runs; may be null

  variable_list operator()(variable_list&& incoming) const;
};

// A graph that runs in parts, as AotiSequence in devices/aoti.py does. Values are numbered: the inputs of the graph, then the
// results of each call in turn.
// Twin: devices/aoti.py, AotiSequence.
struct Sequence {
  struct Call {
    size_t part;
    std::vector<size_t> inputs; // numbers of the values that the part takes
    std::vector<size_t> dead; // values that no later call takes
    std::vector<size_t> unread; // results of this call that nothing takes
  };

  variable_list operator()(variable_list&& values) const {
    drop(values, unused);
    for (const Call& call : calls) {
      variable_list arguments = selected(values, call.inputs);
      drop(values, call.dead);
      variable_list results = parts.at(call.part)(std::move(arguments));
      values.insert(values.end(), std::make_move_iterator(results.begin()), std::make_move_iterator(results.end()));
      drop(values, call.unread);
    }
    return selected(values, outputs);
  }

  std::vector<Executable> parts;
  std::vector<size_t> unused; // inputs that nothing takes
  std::vector<Call> calls;
  std::vector<size_t> outputs; // numbers of the graph's outputs

 private:
  static variable_list selected(const variable_list& values, const std::vector<size_t>& numbers) {
    variable_list found;
    found.reserve(numbers.size());
    for (size_t number : numbers) {
      found.push_back(values.at(number));
    }
    return found;
  }

  static void drop(variable_list& values, const std::vector<size_t>& numbers) {
    for (size_t number : numbers) {
      values.at(number).reset();
    }
  }
};

// Makes several results of one tensor separate tensors, which share memory and version counter: autograd may treat them differently.
// Twin: devices/aoti.py, _separate.
variable_list separate(variable_list&& results) {
  for (auto result = results.begin(); result != results.end(); ++result) {
    const auto is_result = [&](const Tensor& earlier) { return earlier.is_same(*result); };
    if (result->use_count() > 1 && std::any_of(results.begin(), result, is_result)) {
      *result = result->detach();
    }
  }
  return std::move(results);
}

variable_list Executable::operator()(variable_list&& incoming) const {
  if (sequence) {
    return (*sequence)(std::move(incoming));
  }
  if (!runner) {
    return (*function)(std::move(incoming));
  }
  std::string message;
  try {
    return outputs(separate(runner->boxed_run(inputs(std::move(incoming)))));
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = error.what();
  }
  if (failed) {
    failed->raise(message);
  }
  TORCH_CHECK(false, message);
}

// ---------------------------------------------------------------- autograd

// Twin: runtime/backward_inputs.py, Tangent.
struct Tangent {
  size_t position; // index of a visible output
  at::ScalarType dtype;
  std::vector<int64_t> shape, stride;
  std::vector<size_t> sources; // primals whose gradient depends on it

  // The incoming gradient with the strides that the backward was compiled for; zeros if it is undefined.
  Tensor operator()(Tensor&& gradient) const {
    if (gradient.defined() && gradient.strides() == stride) {
      return std::move(gradient);
    }
    Tensor fresh = at::empty_strided(shape, stride, at::TensorOptions(dtype));
    return gradient.defined() ? fresh.copy_(gradient) : fresh.zero_();
  }
};

enum class Kept : uint8_t { primal, checked, unchecked, constant };

struct Differentiable {
  Executable backward;
  std::vector<size_t> visible; // outputs that autograd or the caller sees
  std::vector<size_t> non_differentiable; // indices of those without a gradient
  std::vector<std::pair<Kept, size_t>> saved;
  variable_list constants; // tensors that represent sizes
  std::vector<Tangent> tangents;
  std::vector<int64_t> gradients; // for each primal: the index of its gradient among the backward's outputs, or -1
  std::vector<std::vector<size_t>> depends;
  std::vector<bool> detached;
  std::vector<size_t> donated; // indices of saved values that the backward may overwrite
  std::vector<std::tuple<size_t, size_t, std::string>> between; // visible outputs: the first is computed from the second
  std::vector<std::string> changed; // for each tensor that autograd saves, what to refuse if it was changed in place
};

// The node of the gradients under create_graph: raises if a second derivative is computed.
struct Second : Node {
  using Node::Node;
  variable_list apply(variable_list&&) override {
    refuse("second derivative");
  }
  std::string name() const override {
    return "AotpackSecondDerivative";
  }
};

// Compiled code reads memory directly, so lazy conjugation and negation are resolved, and other kinds of tensors rejected.
Tensor readable(Tensor&& gradient) {
  if (gradient.is_conj() || gradient.is_neg()) {
    gradient = gradient.resolve_conj().resolve_neg();
  }
  const bool plain = gradient.is_cpu() && gradient.layout() == at::kStrided &&
      !gradient.key_set().has(c10::DispatchKey::Python) && gradient.has_storage();
  if (!plain) {
    refuse("gradient", gradient);
  }
  return std::move(gradient);
}

// Twin: runtime/result_sources.py, Watch.
// Runs before all hooks on outputs of a node. Raises if one of them should see the gradient of another output: the gradient of
// an output does not pass the outputs that it is computed from.
struct Between : torch::autograd::FunctionPreHook {
  Between(std::shared_ptr<const Differentiable> method, Node& node) : method_(std::move(method)), node_(node) {}

  variable_list operator()(const variable_list& gradients) override {
    for (const auto& [result, source, what] : method_->between) {
      if (!gradients.at(result).defined()) {
        continue;
      }
      if (node_.retains_grad_hooks().count(source) != 0 || is_captured(source)) {
        refuse(what.c_str());
      }
      refuse_hooks_on(source, what);
    }
    return gradients;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {
    refuse("compiled autograd");
  }

 private:
  void refuse_hooks_on(size_t output, const std::string& what) const {
    for (const auto& hook : node_.tensor_pre_hooks()) {
      const auto& one = *hook;
      if (std::strcmp(typeid(one).name(), kPythonHook) == 0) {
        const auto& python = static_cast<const torch::autograd::PyFunctionTensorPreHook&>(one);
        if (python.value_idx == output) {
          refuse_hooks(what.c_str(), python.dict);
        }
      }
    }
  }

  // Whether torch.autograd.grad asks for the gradient of this output.
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

// The only autograd node of a call. Its backward returns gradients for the primals, in order.
// Twin: runtime/autograd.py, _Step.
struct Step : Node {
  Step(std::shared_ptr<const Differentiable> method, edge_list&& edges) : Node(std::move(edges)), method_(std::move(method)) {}

  // Twin: runtime/autograd.py, _save.
  void save(const variable_list& primals, const variable_list& outputs) {
    for (auto [kind, position] : method_->saved) {
      if (kind == Kept::unchecked) {
        unchecked_.push_back(outputs.at(position));
      } else if (kind != Kept::constant) {
        Tensor value = kind == Kept::primal ? primals.at(position) : outputs.at(position);
        if (kind == Kept::checked && value.is_view()) {
          value = value.detach();
        }
        const bool own = value.grad_fn().get() == this;
        checked_.emplace_back(value, own);
      }
    }
  }

  // Compiled autograd calls this. It was off during the call, otherwise the Python path would have made the call.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {
    refuse("compiled autograd");
  }

  variable_list apply(variable_list&& incoming) override {
    const Differentiable& method = *method_;
    std::vector<bool> reached;
    for (const Tangent& tangent : method.tangents) {
      reached.push_back(incoming.at(tangent.position).defined());
    }
    if (std::find(reached.begin(), reached.end(), true) == reached.end()) {
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
        if (gradient.defined() && method.backward.runner) {
          gradient = readable(std::move(gradient));
        }
        arguments.push_back(tangent(std::move(gradient)));
      }
      results = method.backward(std::move(arguments));
    }
    if (again) {
      refuse_another(results, above);
    }
    for (size_t i = 0; i < method.depends.size(); ++i) {
      const auto& needed = method.depends[i];
      if (!needed.empty() && std::none_of(needed.begin(), needed.end(), [&](size_t t) { return reached.at(t); })) {
        results.at(i) = Tensor(); // eager returns no gradient, not zeros
      }
    }
    variable_list found(method.gradients.size());
    for (size_t i = 0; i < found.size(); ++i) {
      if (method.gradients[i] >= 0) {
        found[i] = results.at(method.gradients[i]);
      }
    }
    return found;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    release();
  }

  std::string name() const override {
    return "AotpackStep";
  }

 private:
  // The backward's saved inputs, in order. Afterwards only these references hold them, unless the graph is retained.
  // Twin: runtime/autograd.py, _unpack.
  variable_list unpack() {
    std::lock_guard<std::mutex> lock(mutex_);
    variable_list checked, found;
    for (size_t i = 0; i < checked_.size(); ++i) {
      checked.push_back(unpacked(i));
    }
    if (released_) {
      refuse("released");
    }
    auto from_checked = checked.begin(), from_unchecked = unchecked_.begin();
    for (auto [kind, position] : method_->saved) {
      found.push_back(
          kind == Kept::constant        ? method_->constants.at(position)
              : kind == Kept::unchecked ? *from_unchecked++
                                        : std::move(*from_checked++));
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

  Tensor unpacked(size_t position) {
    try {
      return checked_[position].unpack(getptr());
    } catch (const c10::Error&) { // freed, or changed in place
      if (!released_ && position < method_->changed.size()) {
        refuse(method_->changed[position].c_str());
      }
      throw;
    }
  }

  void release() {
    for (SavedVariable& value : checked_) {
      value.reset_data();
    }
    unchecked_.clear();
    released_ = true;
  }

  // Gradients under create_graph: their values can be used; differentiating them again raises.
  // Twin: runtime/refused_gradients.py, refuse_second_derivative.
  void refuse_another(variable_list& results, const edge_list& above) const {
    edge_list edges;
    for (const edge_list* all : {&next_edges(), &above}) {
      std::copy_if(all->begin(), all->end(), std::back_inserter(edges), [](const auto& edge) { return edge.is_valid(); });
    }
    auto second = c10::make_intrusive<Second>(std::move(edges));
    for (Tensor& result : results) {
      if (!result.defined() || !torch::autograd::isDifferentiableType(result.scalar_type())) {
        continue;
      }
      result = result.detach(); // it may be an incoming gradient itself
      const auto number = second->add_input_metadata(result);
      torch::autograd::impl::set_gradient_edge(result, {second, number});
    }
  }

  std::shared_ptr<const Differentiable> method_;
  std::vector<SavedVariable> checked_;
  variable_list unchecked_;
  bool released_ = false;
};

// ---------------------------------------------------------------- a call

struct Expected {
  py::object constant; // null: a tensor is expected
  at::ScalarType dtype{};
  std::vector<int64_t> shape, stride;
  bool any_stride = false;
  bool refuses_gradient = false;
};

struct Mutation {
  size_t primal, output;
  bool hidden, unversioned;
};

enum class From : uint8_t { output, primal, constant };

struct Result {
  From from;
  size_t position;
  py::object constant;
};

struct Method {
  bool undetermined; // compiled without deterministic algorithms
  std::vector<Expected> leaves, state;
  std::vector<py::object> names; // names of the state
  std::vector<std::pair<py::object, py::object>> ties; // pairs of names of one tensor
  std::vector<Tensor> constants;
  std::vector<size_t> primals; // indices into leaves, state and constants
  std::vector<std::pair<size_t, size_t>> apart; // pairs of them that must not share memory
  std::vector<size_t> written; // leaves that are written to while gradients are recorded
  Executable forward;
  std::vector<size_t> unviewed; // outputs that must not be views
  std::shared_ptr<const Differentiable> differentiable;
  std::vector<Mutation> mutations;
  std::vector<size_t> touched;
  std::vector<Result> results;
};

// Whether no mode is active: autocast, inference mode, a transform, a tracer, a torch mode, or hooks on saved tensors.
bool ordinary_modes(const Method& method) {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  // Some traces leave "dense" behind, of no backend. It changes nothing for tensors that are dense.
  const auto included = keys.included_ - c10::DispatchKeySet(c10::DispatchKey::Dense);
  return included == c10::default_included_set && keys.excluded_ == c10::default_excluded_set &&
      !at::impl::torch_function_mode_enabled() && at::SavedTensorDefaultHooks::get_tls_state().stack.empty() &&
      !(method.undetermined && at::globalContext().deterministicAlgorithms()) &&
      !torch::autograd::ForwardADLevel::try_get_by_idx(0);
}

// The dispatch keys of an ordinary tensor: on the CPU, dense, no subclass, not lazy, not made in inference mode.
c10::DispatchKeySet ordinary_keys() {
  constexpr auto cpu = c10::BackendComponent::CPUBit;
  return c10::DispatchKeySet(c10::DispatchKey::CPU) | c10::getAutogradRelatedKeySetFromBackend(cpu) |
      c10::getAutocastRelatedKeySetFromBackend(cpu);
}

// Twin: runtime/inputs.py, TensorCheck; runtime/state.py, Expected.
bool fits(const Expected& expected, PyObject* value, bool grad) {
  if (expected.constant) {
    PyObject* constant = expected.constant.ptr();
    return value == constant || (Py_TYPE(value) == Py_TYPE(constant) && PyObject_RichCompareBool(value, constant, Py_EQ) == 1);
  }
  if (!THPVariable_CheckExact(value)) {
    return false;
  }
  const Tensor& tensor = THPVariable_Unpack(value);
  return tensor.key_set() == ordinary_keys() && tensor.scalar_type() == expected.dtype &&
      tensor.sizes() == expected.shape && (expected.any_stride || tensor.strides() == expected.stride) &&
      !(grad && expected.refuses_gradient && tensor.requires_grad());
}

// The first address that a tensor covers, and the address after its last.
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

// Twin: runtime/memory.py, overlap.
bool may_overlap(const Tensor& a, const Tensor& b) {
  const auto [start, stop] = span(a);
  const auto [low, high] = span(b);
  return low < stop && start < high;
}

// Whether two tensors are views of one tensor, which counts the writes to either.
// Twin: runtime/identity.py, _have_one_base.
bool have_one_base(const Tensor& a, const Tensor& b) {
  return a.is_view() && b.is_view() && a._base().is_same(b._base());
}

// Attaches outputs by torch's own function. From torch 2.14 on it also returns the node that it attached.
std::vector<std::optional<Tensor>> wrap_outputs(
    const variable_list& arguments,
    const std::unordered_set<c10::TensorImpl*>& non_differentiable,
    const std::vector<std::optional<Tensor>>& visible,
    const c10::intrusive_ptr<Node>& step) {
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

// Attaches the visible outputs to the node of the call; those in ``non_differentiable`` get no gradient.
void attach(
    const Differentiable& differentiable,
    const c10::intrusive_ptr<Step>& step,
    const variable_list& arguments,
    const std::unordered_set<c10::TensorImpl*>& non_differentiable,
    variable_list& outputs) {
  const auto is_fresh = [&](size_t position) {
    const Tensor& value = outputs.at(position);
    return !value.requires_grad() && !value.is_view() &&
        std::none_of(arguments.begin(), arguments.end(), [&](const Tensor& argument) { return argument.is_same(value); });
  };
  if (std::all_of(differentiable.visible.begin(), differentiable.visible.end(), is_fresh)) { // _wrap_outputs would do only this
    for (size_t position : differentiable.visible) {
      const Tensor& value = outputs[position];
      const auto number = step->add_input_metadata(value);
      if (torch::autograd::isDifferentiableType(value.scalar_type()) && non_differentiable.count(value.unsafeGetTensorImpl()) == 0) {
        torch::autograd::impl::set_gradient_edge(value, {step, number});
      }
    }
    return;
  }
  std::vector<std::optional<Tensor>> visible;
  for (size_t position : differentiable.visible) {
    visible.emplace_back(outputs.at(position));
  }
  auto wrapped = wrap_outputs(arguments, non_differentiable, visible, step);
  for (size_t i = 0; i < wrapped.size(); ++i) {
    outputs[differentiable.visible[i]] = *wrapped[i];
  }
}

// Detaches outputs that eager returns as non-views, if the forward has returned a view or a primal instead. Autograd rejects
// in-place changes of a node's result that is a view. Outputs that were one tensor stay one tensor.
// Twin: runtime/views.py, detach_outputs.
void own(const Method& method, const variable_list& primals, variable_list& outputs) {
  std::vector<std::pair<Tensor, Tensor>> made;
  for (size_t position : method.unviewed) {
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

// Runs the forward, and attaches the outputs that require a gradient to autograd.
// Twin: runtime/autograd.py, Differentiable.
variable_list run(const Method& method, const variable_list& primals, bool with_gradients) {
  if (!with_gradients) {
    at::AutoGradMode off(false);
    variable_list outputs = method.forward(variable_list(primals));
    own(method, primals, outputs);
    return outputs;
  }
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
    outputs = method.forward(variable_list(arguments));
    raw = outputs;
    own(method, arguments, outputs);
    const auto visible = [&](size_t i) { return outputs.at(differentiable.visible.at(i)).unsafeGetTensorImpl(); };
    for (size_t i : differentiable.non_differentiable) {
      non_differentiable.insert(visible(i));
    }
    for (const Tangent& tangent : differentiable.tangents) {
      const auto& from = tangent.sources;
      if (std::none_of(from.begin(), from.end(), [&](size_t i) { return arguments.at(i).requires_grad(); })) {
        non_differentiable.insert(visible(tangent.position));
      }
    }
  }
  attach(differentiable, step, arguments, non_differentiable, outputs);
  if (!differentiable.between.empty()) {
    step->add_tensor_pre_hook(std::make_unique<Between>(method.differentiable, *step));
  }
  step->save(arguments, raw);
  return outputs;
}

// Whether a write copies only a few bytes: the checks of Tensor::copy_ take several times as long as such a copy.
bool is_plain_copy(const Tensor& to, const Tensor& from) {
  return to.key_set() == ordinary_keys() && from.key_set() == ordinary_keys() && !to.requires_grad() && !from.requires_grad() &&
      to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && to.is_contiguous() && from.is_contiguous() &&
      to.nbytes() <= kFewBytes;
}

// Twin: runtime/mutations.py, Mutations.
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
      const bool hidden = mutation.hidden || (owner.requires_grad() && owner.is_leaf());
      (hidden ? owner.detach() : owner).copy_(value);
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

// The caller's values: leaves, then state. Empty if one does not fit.
std::vector<PyObject*> collect(const Method& method, PyObject* leaves, PyObject* slots, bool grad) {
  std::vector<PyObject*> found;
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(leaves));
  if (count != method.leaves.size()) {
    return {};
  }
  found.reserve(count + method.state.size());
  for (size_t i = 0; i < count; ++i) {
    PyObject* value = PySequence_Fast_GET_ITEM(leaves, i);
    if (!fits(method.leaves[i], value, grad)) {
      return {};
    }
    found.push_back(value);
  }
  const auto held = [&](const py::object& name) -> PyObject* {
    PyObject* slot = PyDict_GetItemWithError(slots, name.ptr());
    return slot == nullptr ? nullptr : PyDict_GetItemWithError(PyTuple_GET_ITEM(slot, 0), PyTuple_GET_ITEM(slot, 1));
  };
  for (size_t i = 0; i < method.state.size(); ++i) {
    PyObject* value = held(method.names[i]);
    if (value == nullptr || !fits(method.state[i], value, grad)) {
      return {};
    }
    found.push_back(value);
  }
  for (const auto& [one, other] : method.ties) {
    if (held(one) != held(other)) {
      return {};
    }
  }
  return found;
}

PyObject* call(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  auto& method = *static_cast<Method*>(PyCapsule_GetPointer(self, "aotpack.method"));
  TORCH_CHECK_TYPE(count == 2 && PyDict_Check(arguments[1]), "call(leaves, slots)");
  TORCH_CHECK_TYPE(PyTuple_Check(arguments[0]) || PyList_Check(arguments[0]), "call(leaves, slots)");
  const bool grad = at::GradMode::is_enabled();
  if (!ordinary_modes(method)) {
    Py_RETURN_NONE;
  }
  const std::vector<PyObject*> found = collect(method, arguments[0], arguments[1], grad);
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  if (found.empty() && !(method.leaves.empty() && method.state.empty())) {
    Py_RETURN_NONE;
  }
  const auto tensor = [&](size_t i) -> const Tensor& {
    return i < found.size() ? THPVariable_Unpack(found[i]) : method.constants.at(i - found.size());
  };
  for (size_t i : method.written) {
    const Tensor& written = tensor(i);
    if (grad && written.requires_grad() && (written.is_view() ? written._base() : written).is_leaf()) {
      Py_RETURN_NONE;
    }
  }
  for (auto [one, other] : method.apart) {
    if (may_overlap(tensor(one), tensor(other)) || have_one_base(tensor(one), tensor(other))) {
      Py_RETURN_NONE;
    }
  }
  variable_list primals;
  primals.reserve(method.primals.size());
  bool with_gradients = false;
  for (size_t i : method.primals) {
    primals.push_back(tensor(i));
    with_gradients = with_gradients || primals.back().requires_grad();
  }
  with_gradients = with_gradients && grad && method.differentiable;
  variable_list outputs;
  {
    py::gil_scoped_release no_gil;
    outputs = run(method, primals, with_gradients);
    write_back(method, primals, outputs);
  }
  THPObjectPtr results(PyList_New(static_cast<Py_ssize_t>(method.results.size())));
  for (size_t i = 0; results && i < method.results.size(); ++i) {
    const Result& result = method.results[i];
    PyObject* value = result.from == From::constant ? Py_NewRef(result.constant.ptr())
        : result.from == From::output               ? THPVariable_Wrap(outputs.at(result.position))
                                                    : THPVariable_Wrap(primals.at(result.position));
    if (value == nullptr) {
      return nullptr;
    }
    PyList_SET_ITEM(results.get(), i, value);
  }
  return results.release();
  END_HANDLE_TH_ERRORS
}

// ---------------------------------------------------------------- from Python's description

py::object function(PyMethodDef* definition, void* object, const char* name, PyCapsule_Destructor destroy) {
  py::object capsule = py::reinterpret_steal<py::object>(PyCapsule_New(object, name, destroy));
  return py::reinterpret_steal<py::object>(PyCFunction_New(definition, capsule.ptr()));
}

PyObject* run_list(PyObject* self, PyObject* list) {
  HANDLE_TH_ERRORS
  auto& runner = *static_cast<std::shared_ptr<Runner>*>(PyCapsule_GetPointer(self, "aotpack.runner"));
  TORCH_CHECK_TYPE(PyList_Check(list), "run(list)");
  variable_list arguments = THPVariable_UnpackList(list);
  PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr); // moved out of the list: freed as soon as the code has used them
  variable_list results;
  {
    py::gil_scoped_release no_gil;
    at::AutoGradMode off(false);
    results = runner->boxed_run(std::move(arguments));
  }
  return THPVariable_WrapList(results);
  END_HANDLE_TH_ERRORS
}

PyMethodDef run_definition = {"run", run_list, METH_O, nullptr};
PyMethodDef call_definition = {"call", reinterpret_cast<PyCFunction>(call), METH_FASTCALL, nullptr};

py::object open(const std::string& library) {
  auto* runner = new std::shared_ptr<Runner>(std::make_shared<Runner>(library));
  return function(&run_definition, runner, "aotpack.runner", [](PyObject* capsule) {
    delete static_cast<std::shared_ptr<Runner>*>(PyCapsule_GetPointer(capsule, "aotpack.runner"));
  });
}

Runner& runner_of(const py::object& run) {
  void* found = PyCapsule_GetPointer(PyCFunction_GetSelf(run.ptr()), "aotpack.runner");
  if (found == nullptr) {
    throw py::error_already_set();
  }
  return **static_cast<std::shared_ptr<Runner>*>(found);
}

template <typename T>
T take(const py::dict& from, const char* key) {
  return from[key].cast<T>();
}

Executable executable(const py::dict& from);

std::shared_ptr<const Sequence> sequence(const py::dict& from) {
  auto made = std::make_shared<Sequence>();
  for (const py::handle& part : from["parts"]) {
    made->parts.push_back(executable(part.cast<py::dict>()));
  }
  made->unused = take<std::vector<size_t>>(from, "unused");
  using Numbers = std::vector<size_t>;
  for (auto [part, inputs, dead, unread] : take<std::vector<std::tuple<size_t, Numbers, Numbers, Numbers>>>(from, "calls")) {
    made->calls.push_back({part, inputs, dead, unread});
  }
  made->outputs = take<Numbers>(from, "outputs");
  return made;
}

Executable executable(const py::dict& from) {
  if (from.contains("sequence")) {
    return {nullptr, nullptr, {}, {}, nullptr, sequence(from["sequence"])};
  }
  const py::object run = take<py::object>(from, "run");
  if (from["inputs"].is_none()) {
    return {nullptr, std::make_shared<Function>(run), {}, {}, nullptr, nullptr};
  }
  const py::object failed = from["failed"];
  return {
      runner_of(run).shared_from_this(),
      nullptr,
      Selection(take<std::vector<size_t>>(from, "inputs")),
      Selection(take<std::vector<size_t>>(from, "outputs")),
      failed.is_none() ? nullptr : std::make_shared<Function>(failed),
      nullptr};
}

Expected expected(const py::dict& from) {
  Expected made;
  if (from.contains("constant")) {
    made.constant = from["constant"];
    return made;
  }
  made.dtype = take<at::ScalarType>(from, "dtype");
  made.shape = take<std::vector<int64_t>>(from, "shape");
  made.any_stride = from["stride"].is_none();
  made.stride = made.any_stride ? std::vector<int64_t>() : take<std::vector<int64_t>>(from, "stride");
  made.refuses_gradient = take<bool>(from, "refuses_gradient");
  return made;
}

std::shared_ptr<const Differentiable> differentiable(const py::dict& from) {
  auto made = std::make_shared<Differentiable>();
  made->backward = executable(from["executable"]);
  made->visible = take<std::vector<size_t>>(from, "visible");
  made->non_differentiable = take<std::vector<size_t>>(from, "plain");
  for (auto [kind, position] : take<std::vector<std::pair<std::string, size_t>>>(from, "saved")) {
    made->saved.emplace_back(
        kind == "primal"          ? Kept::primal
            : kind == "checked"   ? Kept::checked
            : kind == "unchecked" ? Kept::unchecked
                                  : Kept::constant,
        position);
  }
  made->constants = take<variable_list>(from, "constants");
  for (const py::handle& item : from["tangents"]) {
    const auto tangent = item.cast<py::dict>();
    made->tangents.push_back(
        {take<size_t>(tangent, "position"),
         take<at::ScalarType>(tangent, "dtype"),
         take<std::vector<int64_t>>(tangent, "shape"),
         take<std::vector<int64_t>>(tangent, "stride"),
         take<std::vector<size_t>>(tangent, "sources")});
  }
  made->gradients = take<std::vector<int64_t>>(from, "gradients");
  made->depends = take<std::vector<std::vector<size_t>>>(from, "depends");
  made->detached = take<std::vector<bool>>(from, "detached");
  made->donated = take<std::vector<size_t>>(from, "donated");
  made->between = take<std::vector<std::tuple<size_t, size_t, std::string>>>(from, "between");
  made->changed = take<std::vector<std::string>>(from, "changed");
  return made;
}

py::object make(const py::dict& from) {
  auto made = std::make_unique<Method>();
  made->undetermined = take<bool>(from, "undetermined");
  for (const py::handle& item : from["leaves"]) {
    made->leaves.push_back(expected(item.cast<py::dict>()));
  }
  for (const py::handle& item : from["state"]) {
    made->state.push_back(expected(item.cast<py::dict>()));
  }
  made->names = take<std::vector<py::object>>(from, "names");
  made->ties = take<std::vector<std::pair<py::object, py::object>>>(from, "ties");
  made->constants = take<std::vector<Tensor>>(from, "constants");
  made->primals = take<std::vector<size_t>>(from, "primals");
  made->apart = take<std::vector<std::pair<size_t, size_t>>>(from, "apart");
  made->written = take<std::vector<size_t>>(from, "written");
  made->forward = executable(from["forward"]);
  made->unviewed = take<std::vector<size_t>>(from, "unviewed");
  if (!from["differentiable"].is_none()) {
    made->differentiable = differentiable(from["differentiable"]);
  }
  for (auto [primal, output, hidden, unversioned] :
       take<std::vector<std::tuple<size_t, size_t, bool, bool>>>(from, "mutations")) {
    made->mutations.push_back({primal, output, hidden, unversioned});
  }
  made->touched = take<std::vector<size_t>>(from, "touched");
  for (const py::handle& item : from["results"]) {
    const auto [kind, value] = item.cast<std::pair<std::string, py::object>>();
    if (kind == "constant") {
      made->results.push_back({From::constant, 0, value});
    } else {
      made->results.push_back({kind == "output" ? From::output : From::primal, value.cast<size_t>(), py::object()});
    }
  }
  return function(&call_definition, made.release(), "aotpack.method", [](PyObject* capsule) {
    delete static_cast<Method*>(PyCapsule_GetPointer(capsule, "aotpack.method"));
  });
}

} // namespace

PYBIND11_MODULE(aotpack_call, module) {
  module.attr("interface") = kInterface;
  module.def("open", &open);
  module.def("outputs", [](const py::object& run) { return runner_of(run).outputs(); });
  module.def("make", &make);
  module.def("on_refusal", [](const py::object& function) {
    Py_XDECREF(refusal);
    refusal = py::object(function).release().ptr();
  });
}
