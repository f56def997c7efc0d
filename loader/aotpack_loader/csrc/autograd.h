// The one autograd node of a call: what it saves, its gradients, and what it refuses.

#pragma once

#include "graphs.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <mutex>
#include <optional>

namespace aotpack {

using torch::autograd::edge_list;
using torch::autograd::Node;

// Why a backward is refused. Twin: format/native_call.py, Refusal.
enum class Refusal : uint8_t {
  second_derivative = 0,
  released = 1,
  compiled_autograd = 2,
  unreadable_gradient = 3,
  derived_output = 4,
  changed_in_place = 5,
};

// What a backward needs of the language that made the call.
class Host {
 public:
  virtual ~Host() = default;
  // Raises the error for a refusal. What the names are depends on the reason; `gradient` may be undefined.
  [[noreturn]] virtual void refuse(Refusal reason, const std::vector<std::string>& names, const Tensor& gradient) const = 0;
  // Whether a hook is the caller's and waits for the gradient of a visible output.
  virtual bool waits_for(const torch::autograd::FunctionPreHook& hook, size_t output) const = 0;
};

struct Tangent {
  size_t position; // of a visible output
  at::ScalarType dtype;
  std::vector<int64_t> shape, stride;
  Positions sources; // primals whose gradient depends on it

  Tensor operator()(Tensor&& gradient) const;
};

enum class SavedKind : uint8_t { primal, checked_output, unchecked_output, size };

struct Saved {
  SavedKind kind;
  size_t position; // of a primal or an output
  std::string name; // what it is to the caller
  Tensor carrier; // stands for a size
};

struct DerivedOutput {
  size_t output, source; // positions of visible outputs; the first is computed from the second
  std::string path, source_path;
};

struct Differentiable {
  const Host* host; // lives as long as the process
  std::shared_ptr<const Graph> backward;
  Positions visible; // outputs that autograd or the caller sees
  Positions non_differentiable; // positions of those without a gradient
  std::vector<Saved> saved;
  std::vector<Tangent> tangents;
  std::vector<std::optional<size_t>> gradients; // for each primal: its gradient among the backward's outputs
  std::vector<Positions> depends; // for each of the backward's outputs: tangents
  std::vector<bool> detached; // primals
  Positions donated; // positions of saved values that the backward may overwrite
  std::vector<DerivedOutput> derived_outputs;
};

// Its backward returns gradients for the primals, in order.
class Step : public Node {
 public:
  Step(std::shared_ptr<const Differentiable> method, edge_list&& edges) : Node(std::move(edges)), method_(std::move(method)) {}

  void save(const variable_list& primals, const variable_list& outputs);
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;
  variable_list apply(variable_list&& incoming) override;
  void release_variables() override;

  std::string name() const override {
    return "AotpackStep";
  }

 private:
  variable_list unpack();
  Tensor unpacked(const Saved& saved, torch::autograd::SavedVariable& value);
  void release();
  void refuse_second_derivatives(variable_list& results, const edge_list& above) const;

  std::shared_ptr<const Differentiable> method_;
  std::vector<torch::autograd::SavedVariable> checked_;
  variable_list unchecked_;
  bool released_ = false;
};

// Attaches the visible outputs to the node of the call; those in `non_differentiable` get no gradient.
void attach(
    const std::shared_ptr<const Differentiable>& differentiable,
    const c10::intrusive_ptr<Step>& step,
    const variable_list& arguments,
    const std::unordered_set<c10::TensorImpl*>& non_differentiable,
    variable_list& outputs);

} // namespace aotpack
