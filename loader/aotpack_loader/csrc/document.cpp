// Reads every field of format/native_call.py, by the same names.

#include "document.h"

#include <unordered_map>

namespace aotpack {

namespace {

using Fields = Json::Fields;

const auto index_of = [](const Json& json) { return json.index(); };
const auto string_of = [](const Json& json) { return json.string(); };
const auto positions_of = [](const Json& json) { return json.each(index_of); };

template <typename Read>
auto pair_of(const Json& json, Read read) {
  const auto& items = json.list();
  if (items.size() != 2) {
    throw std::invalid_argument("expected a pair");
  }
  return std::make_pair(read(items[0]), read(items[1]));
}

at::ScalarType dtype_of(const Json& json) {
  static const std::unordered_map<std::string, at::ScalarType> dtypes = {
      {"bool", at::kBool},
      {"uint8", at::kByte},
      {"uint16", at::kUInt16},
      {"uint32", at::kUInt32},
      {"uint64", at::kUInt64},
      {"int8", at::kChar},
      {"int16", at::kShort},
      {"int32", at::kInt},
      {"int64", at::kLong},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16},
      {"float32", at::kFloat},
      {"float64", at::kDouble},
      {"complex32", at::kComplexHalf},
      {"complex64", at::kComplexFloat},
      {"complex128", at::kComplexDouble},
      {"float8_e4m3fn", at::kFloat8_e4m3fn},
      {"float8_e5m2", at::kFloat8_e5m2},
      {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
      {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
  };
  const auto found = dtypes.find(json.string());
  if (found == dtypes.end()) {
    throw std::invalid_argument("no dtype: " + json.string());
  }
  return found->second;
}

// The strides that a memory format gives tensors of a shape.
std::vector<int64_t> strides_of(const std::string& format, const std::vector<int64_t>& shape) {
  static const std::unordered_map<std::string, at::MemoryFormat> formats = {
      {"contiguous_format", at::MemoryFormat::Contiguous},
      {"channels_last", at::MemoryFormat::ChannelsLast},
      {"channels_last_3d", at::MemoryFormat::ChannelsLast3d},
  };
  const auto found = formats.find(format);
  if (found == formats.end()) {
    throw std::invalid_argument("no memory format: " + format);
  }
  return at::empty(shape, at::TensorOptions(at::kMeta).memory_format(found->second)).strides().vec();
}

Symbol symbol(const Json& json, const std::vector<Json>& leaves) {
  return json.object([&](Fields& from) {
    Symbol made{from["name"].string(), from["leaf"].index(), from["dim"].index(), 0, from["minimum"].integer(), {}};
    made.maximum = from["maximum"].optional([](const Json& maximum) { return maximum.integer(); });
    Fields leaf(leaves.at(made.leaf));
    made.rank = leaf["shape"].list().size();
    return made;
  });
}

// Makes the parts of a method at one set of sizes.
class Builder {
 public:
  Builder(const Sizes& sizes, const Names& names, const Host& host) : sizes_(sizes), names_(names), host_(host) {}

  Method method(const Json& json, variable_list constants) const {
    return json.object([&](Fields& from) {
      Method made;
      made.nondeterministic = from["nondeterministic"].boolean();
      made.leaves = from["leaves"].each([&](const Json& leaf) { return this->leaf(leaf); });
      made.state = from["state"].each([&](const Json& state) { return this->state(state); });
      made.ties = from["ties"].each([](const Json& tie) { return pair_of(tie, string_of); });
      if (from["constants"].list().size() != constants.size()) {
        throw std::invalid_argument("a constant is missing");
      }
      made.constants = std::move(constants);
      for (const char* read_by_the_document : {"symbols", "constraints", "expressions"}) {
        from[read_by_the_document];
      }
      made.primals = positions_of(from["primals"]);
      made.must_not_overlap = from["must_not_overlap"].each([](const Json& pair) { return pair_of(pair, index_of); });
      made.written_leaves = positions_of(from["written_leaves"]);
      made.forward = graph(from["forward"]);
      made.detached_outputs = positions_of(from["detached_outputs"]);
      if (const Json& given = from["differentiable"]; !given.is_null()) {
        made.differentiable = std::make_shared<const Differentiable>(differentiable(given));
      }
      made.mutations = from["mutations"].each([&](const Json& mutation) { return this->mutation(mutation); });
      made.touched = positions_of(from["touched"]);
      made.results = from["results"].each([&](const Json& result) { return this->result(result); });
      return made;
    });
  }

 private:
  int64_t size(const Json& dim) const {
    if (dim.kind() == Json::Kind::number) {
      return dim.integer();
    }
    const auto found = sizes_.find(dim.string());
    if (found == sizes_.end()) {
      throw std::invalid_argument("no size is given for " + dim.string());
    }
    return found->second;
  }

  std::vector<int64_t> shape(const Json& dims) const {
    return dims.each([&](const Json& dim) { return size(dim); });
  }

  ExpectedTensor tensor(Fields& from) const {
    return {
        dtype_of(from["dtype"]),
        shape(from["shape"]),
        from["stride"].optional([&](const Json& stride) { return shape(stride); }),
        from["refuses_gradient"].boolean()};
  }

  ExpectedLeaf leaf(const Json& json) const {
    return json.object([&](Fields& from) {
      const std::string& type = from["type"].string();
      if (type == "tensor") {
        return ExpectedLeaf{tensor(from), {}};
      }
      require(type == "constant", type);
      return ExpectedLeaf{{}, from["value"]};
    });
  }

  State state(const Json& json) const {
    return json.object([&](Fields& from) {
      return State{from["name"].string(), from["tensor"].object([&](Fields& fields) {
                     require(fields["type"].string() == "tensor", fields["type"].string());
                     return tensor(fields);
                   })};
    });
  }

  std::shared_ptr<const Graph> graph(const Json& json) const {
    return json.object([&](Fields& from) -> std::shared_ptr<const Graph> {
      const std::string& type = from["type"].string();
      if (type == "code") {
        const std::string& name = from["name"].string();
        return std::make_shared<Code>(
            names_.code(name), positions_of(from["inputs"]), positions_of(from["outputs"]), names_.failed(name));
      }
      if (type == "function") {
        return names_.function(from["name"].string());
      }
      require(type == "sequence", type);
      auto made = std::make_shared<Sequence>();
      made->parts = from["parts"].each([&](const Json& part) { return graph(part); });
      made->unused = positions_of(from["unused"]);
      made->calls = from["calls"].each([](const Json& call) {
        return call.object([](Fields& fields) {
          return Sequence::Call{
              fields["part"].index(),
              positions_of(fields["inputs"]),
              positions_of(fields["dead"]),
              positions_of(fields["unread"])};
        });
      });
      made->outputs = positions_of(from["outputs"]);
      return made;
    });
  }

  Differentiable differentiable(const Json& json) const {
    return json.object([&](Fields& from) {
      Differentiable made;
      made.host = &host_;
      made.backward = graph(from["backward"]);
      made.visible = positions_of(from["visible"]);
      made.non_differentiable = positions_of(from["non_differentiable"]);
      made.saved = from["saved"].each([&](const Json& saved) { return this->saved(saved); });
      made.tangents = from["tangents"].each([&](const Json& tangent) { return this->tangent(tangent); });
      made.gradients = from["gradients"].each([](const Json& gradient) { return gradient.optional(index_of); });
      made.depends = from["depends"].each(positions_of);
      for (const Json& detached : from["detached"].list()) {
        made.detached.push_back(detached.boolean());
      }
      made.donated = positions_of(from["donated"]);
      made.derived_outputs = from["derived_outputs"].each([](const Json& derived) {
        return derived.object([](Fields& fields) {
          return DerivedOutput{
              fields["output"].index(), fields["source"].index(), fields["path"].string(), fields["source_path"].string()};
        });
      });
      return made;
    });
  }

  Saved saved(const Json& json) const {
    return json.object([&](Fields& from) {
      const std::string& type = from["type"].string();
      if (type == "primal") {
        return Saved{SavedKind::primal, from["primal"].index(), from["name"].string(), {}};
      }
      if (type == "output") {
        const bool is_checked = from["check_version"].boolean();
        const SavedKind kind = is_checked ? SavedKind::checked_output : SavedKind::unchecked_output;
        return Saved{kind, from["output"].index(), from["name"].string(), {}};
      }
      require(type == "size", type);
      return Saved{SavedKind::size, 0, "", at::empty({size(from["size"]), 0}, at::kFloat)};
    });
  }

  Tangent tangent(const Json& json) const {
    return json.object([&](Fields& from) {
      Tangent made{from["position"].index(), dtype_of(from["dtype"]), shape(from["shape"]), {}, positions_of(from["sources"])};
      const Json& stride = from["stride"];
      made.stride = stride.kind() == Json::Kind::string ? strides_of(stride.string(), made.shape) : shape(stride);
      return made;
    });
  }

  Mutation mutation(const Json& json) const {
    return json.object([](Fields& from) {
      return Mutation{
          from["primal"].index(),
          from["output"].index(),
          from["hidden_from_autograd"].boolean(),
          from["unversioned"].boolean()};
    });
  }

  Result result(const Json& json) const {
    return json.object([&](Fields& from) {
      const std::string& type = from["type"].string();
      if (type == "output" || type == "primal") {
        return Result{type == "output" ? ResultKind::output : ResultKind::primal, from[type].index(), {}, 0};
      }
      if (type == "constant") {
        return Result{ResultKind::constant, 0, from["value"], 0};
      }
      require(type == "size", type);
      return Result{ResultKind::size, 0, {}, size(from["size"])};
    });
  }

  static void require(bool is_known, const std::string& type) {
    if (!is_known) {
      throw std::invalid_argument("unknown type " + type);
    }
  }

  const Sizes& sizes_;
  const Names& names_;
  const Host& host_;
};

} // namespace

Document::Document(std::string_view text) : json_(Json::parse(text)) {
  Fields from(json_);
  const std::vector<Json>& leaves = from["leaves"].list();
  symbols = from["symbols"].each([&](const Json& json) { return symbol(json, leaves); });
  constraints = from["constraints"].each(string_of);
  expressions = from["expressions"].each(string_of);
  is_differentiable = !from["differentiable"].is_null();
}

Method Document::method(const Sizes& sizes, const Names& names, variable_list constants, const Host& host) const {
  return Builder(sizes, names, host).method(json_, std::move(constants));
}

} // namespace aotpack
