// The document of a native call (spec/native-call.md), and the method that it describes.

#pragma once

#include "method.h"

#include <unordered_map>

namespace aotpack {

// The values of symbols and of expressions over them, by their texts.
using Sizes = std::unordered_map<std::string, int64_t>;

struct Symbol {
  std::string name;
  size_t leaf, dim, rank;
  int64_t minimum;
  std::optional<int64_t> maximum;
};

// What the names in a document stand for.
class Names {
 public:
  virtual ~Names() = default;
  virtual std::shared_ptr<Runner> code(const std::string& name) const = 0;
  virtual Failed failed(const std::string& name) const = 0;
  virtual std::shared_ptr<const Graph> function(const std::string& name) const = 0;
};

class Document {
 public:
  // Raises std::invalid_argument, also for fields that are missing or unknown.
  explicit Document(std::string_view text);

  // The method at one set of sizes. `constants` are tensors in the order of the document.
  Method method(const Sizes& sizes, const Names& names, variable_list constants, const Host& host) const;

  std::vector<Symbol> symbols;
  std::vector<std::string> constraints, expressions;
  bool is_differentiable = false;

 private:
  Json json_;
};

} // namespace aotpack
