// The updates of an optimizer's step. Knows tensors, but no language that calls it.

#pragma once

#include "graphs.h"

namespace aotpack {

// A tensor, and where its elements were.
struct Placed {
  explicit Placed(const Tensor& of) : tensor(of), memory(of.const_data_ptr()), sizes(of.sizes()), strides(of.strides()) {}

  // Whether the elements are still there.
  bool holds() const {
    return tensor.const_data_ptr() == memory && tensor.sizes() == sizes && tensor.strides() == strides;
  }

  Tensor tensor;
  const void* memory;
  c10::SmallVector<int64_t, 5> sizes, strides;
};

// A parameter and its state, in the order of the method: as they are, and as the code takes them.
struct Row {
  std::vector<Placed> held;
  variable_list taken;

  const Tensor& parameter() const {
    return held.front().tensor;
  }
};

// Leaves of a method are numbered: the parameter, its gradient, its state, the numbers of the group, constants.
struct UpdateMethod {
  std::shared_ptr<const Graph> code;
  Positions inputs; // leaves that the graph takes
  std::vector<std::pair<size_t, size_t>> writes; // a leaf, and the output that it becomes
  std::vector<bool> alike; // of the parameter and its state: has the parameter's sizes
  bool flat; // tensors of the parameter's sizes are taken with one dimension
  variable_list constants;
};

// Updates the parameters of one kind. O1. Twin: optimizer/updates.py, Update.
class Update {
 public:
  explicit Update(UpdateMethod&& method) : method_(std::move(method)) {}

  // A row of a parameter and its state, which fit the method.
  Row row(const variable_list& held) const;

  // Whether the parameter is where it was, and has a plain gradient of its sizes in a storage of its own.
  static bool takes_gradient(const Row& row);

  // Updates rows that take their gradients. `numbers` are those of the group.
  void run(const std::vector<const Row*>& rows, const variable_list& numbers) const;

 private:
  using Rows = std::vector<const Row*>;

  void one(const Row& row, const variable_list& numbers) const;
  void packed(const Rows& rows, int64_t elements, const variable_list& numbers) const;
  // The leaves after a call: those of the parameter and its state are given, and written to.
  variable_list results(variable_list&& leaves, const variable_list& numbers) const;
  bool may_join(const Row& row, const Row& other) const;

  UpdateMethod method_;
};

} // namespace aotpack
