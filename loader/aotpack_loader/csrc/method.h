// A method at one set of sizes, and its calls. Knows tensors, but no language that calls it.

#pragma once

#include "autograd.h"
#include "json.h"

namespace aotpack {

struct ExpectedTensor {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::optional<std::vector<int64_t>> stride; // null: any
  bool refuses_gradient;
};

struct ExpectedLeaf {
  std::optional<ExpectedTensor> tensor;
  std::optional<Json> constant; // the value that must be passed, if no tensor is expected
};

struct State {
  std::string name;
  ExpectedTensor tensor;
};

struct Mutation {
  size_t primal, output;
  bool hidden_from_autograd, unversioned;
};

enum class ResultKind : uint8_t { output, primal, constant, size };

struct Result {
  ResultKind kind;
  size_t position; // of an output or a primal
  std::optional<Json> constant;
  int64_t size;
};

struct Method {
  bool nondeterministic; // compiled without deterministic algorithms
  std::vector<ExpectedLeaf> leaves;
  std::vector<State> state;
  std::vector<std::pair<std::string, std::string>> ties; // pairs of names of one tensor
  variable_list constants;
  Positions primals; // numbers of leaves, state and constants, counted as one; so are the next two
  std::vector<std::pair<size_t, size_t>> must_not_overlap;
  Positions written_leaves; // leaves that are written to while gradients are recorded
  std::shared_ptr<const Graph> forward;
  Positions detached_outputs; // outputs that must not be views
  std::shared_ptr<const Differentiable> differentiable; // may be null
  std::vector<Mutation> mutations;
  Positions touched; // primals whose version moves
  std::vector<Result> results;
};

// The dispatch keys of an ordinary tensor: on the device of native code, dense, no subclass, not lazy, not made in inference mode.
inline c10::DispatchKeySet ordinary_keys() {
  constexpr auto backend = c10::toBackendComponent(kDeviceKey);
  return c10::DispatchKeySet(kDeviceKey) | c10::getAutogradRelatedKeySetFromBackend(backend) |
      c10::getAutocastRelatedKeySetFromBackend(backend);
}

// A4, A20. Twin: runtime/inputs.py, TensorCheck; runtime/state.py, Expected.
inline bool fits(const ExpectedTensor& expected, const Tensor& tensor, bool grad) {
  return tensor.key_set() == ordinary_keys() && tensor.scalar_type() == expected.dtype && tensor.sizes() == expected.shape &&
      (!expected.stride || tensor.strides() == *expected.stride) &&
      !(grad && expected.refuses_gradient && tensor.requires_grad());
}

// Whether a call may be made in the modes of this thread.
bool takes_modes(const Method& method);

// What a call is of: leaves, state and constants. Null where a leaf is no tensor.
using Values = std::vector<const Tensor*>;

// Whether a call may be made with these values, each of which fits.
bool takes_memory(const Method& method, const Values& values, bool grad);

struct Called {
  variable_list primals, outputs;
};

// Makes a call: runs the forward, connects the outputs to autograd, writes mutations back.
Called call(const Method& method, variable_list&& primals, bool grad);

} // namespace aotpack
