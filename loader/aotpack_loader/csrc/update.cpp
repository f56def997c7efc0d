#include "update.h"

#include "method.h"

#include <cstring>

namespace aotpack {

namespace {

constexpr int64_t kSmall = 1 << 12; // Elements. Copying more takes longer than running the code once more.
constexpr int64_t kTogether = 1 << 15; // Elements. As many stay in a processor's cache.

bool same_order(const Tensor& one, const Tensor& other) {
  return one.strides() == other.strides() || (one.is_contiguous() && other.is_contiguous());
}

// A gradient with its elements in the order of the parameter's.
Tensor gradient_of(const Row& row) {
  const Tensor &parameter = row.parameter(), &gradient = parameter.grad();
  return same_order(parameter, gradient) ? gradient : at::empty_like(parameter).copy_(gradient);
}

Tensor flattened(const Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

void copy_bytes(void* to, const void* from, size_t count) {
  if (count != 0) {
    std::memcpy(to, from, count);
  }
}

// Elements of several tensors, one after the other.
class Joined {
 public:
  Joined(const Tensor& like, int64_t elements) : tensor(at::empty({elements}, like.options())) {}

  void add(const Tensor& part) {
    copy_bytes(advanced(part.nbytes()), part.const_data_ptr(), part.nbytes());
  }

  Tensor tensor;

 private:
  char* advanced(size_t bytes) {
    return static_cast<char*>(tensor.mutable_data_ptr()) + std::exchange(offset_, offset_ + bytes);
  }

  size_t offset_ = 0;
};

} // namespace

Row Update::row(const variable_list& held) const {
  at::AutoGradMode off(false);
  Row made;
  for (size_t i = 0; i < held.size(); ++i) {
    made.held.emplace_back(held[i]);
    made.taken.push_back(method_.flat && method_.alike.at(i) ? flattened(held[i]) : held[i]);
  }
  return made;
}

bool Update::takes_gradient(const Row& row) {
  const Tensor &parameter = row.parameter(), &gradient = parameter.grad();
  return row.held.front().holds() && gradient.defined() && gradient.key_set() == ordinary_keys() &&
      gradient.scalar_type() == parameter.scalar_type() && gradient.sizes() == parameter.sizes() &&
      std::none_of(row.held.begin(), row.held.end(), [&](const Placed& held) {
           return held.tensor.storage().unsafeGetStorageImpl() == gradient.storage().unsafeGetStorageImpl();
         });
}

void Update::run(const Rows& rows, const variable_list& numbers) const {
  at::AutoGradMode off(false);
  Rows together;
  int64_t elements = 0;
  const auto flush = [&] {
    if (together.size() == 1) {
      one(*together.front(), numbers);
    } else if (!together.empty()) {
      packed(together, elements, numbers);
    }
    together.clear();
    elements = 0;
  };
  for (const Row* row : rows) {
    const int64_t count = row->parameter().numel();
    if (!method_.flat || count > kSmall) {
      one(*row, numbers);
    } else {
      if (!together.empty() && (elements + count > kTogether || !may_join(*together.front(), *row))) {
        flush();
      }
      together.push_back(row);
      elements += count;
    }
  }
  flush();
  for (const Row* row : rows) {
    row->parameter().unsafeGetTensorImpl()->bump_version();
  }
}

// An update in one call is that of each parameter only if the states without the parameter's sizes are equal.
bool Update::may_join(const Row& row, const Row& other) const {
  for (size_t i = 0; i < row.held.size(); ++i) {
    const Tensor& mine = row.held[i].tensor;
    if (!method_.alike[i] && std::memcmp(mine.const_data_ptr(), other.held[i].tensor.const_data_ptr(), mine.nbytes()) != 0) {
      return false;
    }
  }
  return true;
}

variable_list Update::results(variable_list&& leaves, const variable_list& numbers) const {
  leaves.insert(leaves.end(), numbers.begin(), numbers.end());
  leaves.insert(leaves.end(), method_.constants.begin(), method_.constants.end());
  variable_list arguments;
  arguments.reserve(method_.inputs.size());
  for (size_t leaf : method_.inputs) {
    arguments.push_back(leaves.at(leaf));
  }
  variable_list outputs = method_.code->run(std::move(arguments));
  for (const auto& [leaf, position] : method_.writes) {
    const Tensor &target = leaves[leaf], &value = outputs.at(position);
    TORCH_CHECK(
        value.sizes() == target.sizes() && value.scalar_type() == target.scalar_type(), "a step returns a tensor of other sizes");
  }
  for (const auto& [leaf, position] : method_.writes) {
    const Tensor &target = leaves[leaf], &value = outputs[position];
    if (value.const_data_ptr() != target.const_data_ptr()) { // else the code has written there itself
      target.copy_(value);
    }
  }
  return std::move(leaves);
}

void Update::one(const Row& row, const variable_list& numbers) const {
  Tensor gradient = gradient_of(row);
  variable_list leaves{row.taken.front(), method_.flat ? flattened(gradient) : gradient};
  leaves.insert(leaves.end(), row.taken.begin() + 1, row.taken.end());
  results(std::move(leaves), numbers);
}

void Update::packed(const Rows& rows, int64_t elements, const variable_list& numbers) const {
  const Row& first = *rows.front();
  variable_list leaves;
  const auto joined = [&](const Tensor& like, auto&& part) {
    Joined parts(like, elements);
    for (const Row* row : rows) {
      parts.add(part(*row));
    }
    leaves.push_back(std::move(parts.tensor));
  };
  joined(first.taken.front(), [](const Row& row) { return row.taken.front(); });
  joined(first.taken.front(), gradient_of);
  for (size_t i = 1; i < first.taken.size(); ++i) {
    if (method_.alike[i]) {
      joined(first.taken[i], [i](const Row& row) { return row.taken[i]; });
    } else {
      leaves.push_back(first.taken[i].clone());
    }
  }
  leaves = results(std::move(leaves), numbers);
  for (const auto& [leaf, output] : method_.writes) {
    const size_t i = leaf == 0 ? 0 : leaf - 1; // C42: a step writes no gradient
    const auto* from = static_cast<const char*>(leaves[leaf].const_data_ptr());
    for (const Row* row : rows) {
      const Tensor& to = row->taken[i];
      copy_bytes(to.mutable_data_ptr(), from, to.nbytes());
      from += method_.alike[i] ? to.nbytes() : 0;
    }
  }
}

} // namespace aotpack
