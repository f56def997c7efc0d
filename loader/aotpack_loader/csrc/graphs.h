// What computes a graph: compiled code, a sequence of it, or a function of the host.

#pragma once

#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace aotpack {

using at::Tensor;
using torch::autograd::variable_list;
using Positions = std::vector<size_t>;

// The device of native code. A library for another device is compiled with its runner, this constant and its keys.
constexpr at::DeviceType kDevice = at::kCPU;
constexpr c10::DispatchKey kDeviceKey = c10::DispatchKey::CPU;

class Graph {
 public:
  virtual ~Graph() = default;
  // The outputs of the graph. It takes its inputs over, so that each is freed after its last use.
  virtual variable_list run(variable_list&& inputs) const = 0;
  // Whether it reads the memory of its inputs, without the flags for conjugation and negation.
  virtual bool reads_memory() const {
    return true;
  }
};

class Runner : public torch::inductor::AOTIModelContainerRunnerCpu {
 public:
  using AOTIModelContainerRunnerCpu::AOTIModelContainerRunnerCpu;

  size_t outputs() const {
    size_t count = 0;
    TORCH_CHECK(get_num_outputs_func_(container_handle_, &count) == 0, "compiled code does not tell how much it returns");
    return count;
  }
};

// Takes the values at some positions of a list, and empties the list.
class Selection {
 public:
  explicit Selection(Positions from) : positions_(std::move(from)) {
    for (size_t i = 0; i < positions_.size(); ++i) {
      in_order_ = in_order_ && positions_[i] == i;
    }
  }

  variable_list operator()(variable_list&& from) const {
    if (in_order_ && from.size() == positions_.size()) {
      return std::move(from);
    }
    variable_list found;
    found.reserve(positions_.size());
    for (size_t position : positions_) {
      found.push_back(from.at(position));
    }
    from.clear(); // an activation is freed as soon as the code has used it
    return found;
  }

 private:
  Positions positions_;
  bool in_order_ = true; // 0, 1, 2, …
};

// Makes several results of one tensor separate tensors, which share memory and version counter: autograd may treat them differently.
// Twin: devices/aoti.py, _separate.
inline variable_list separate(variable_list&& results) {
  for (auto result = results.begin(); result != results.end(); ++result) {
    const auto is_result = [&](const Tensor& earlier) { return earlier.is_same(*result); };
    if (result->use_count() > 1 && std::any_of(results.begin(), result, is_result)) {
      *result = result->detach();
    }
  }
  return std::move(results);
}

// Raises the host's error for the message of an exception in compiled code; null: there is none.
using Failed = std::function<void(const std::string&)>;

// X1: values pass as they are. Twin: devices/aoti.py, AotiExecutable.
class Code : public Graph {
 public:
  Code(std::shared_ptr<Runner> runner, Positions inputs, Positions outputs, Failed failed)
      : runner_(std::move(runner)), inputs_(std::move(inputs)), outputs_(std::move(outputs)), failed_(std::move(failed)) {}

  variable_list run(variable_list&& inputs) const override {
    std::string message;
    try {
      return outputs_(separate(runner_->boxed_run(inputs_(std::move(inputs)))));
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
    } catch (const std::exception& error) {
      message = error.what();
    }
    if (failed_) {
      failed_(message);
    }
    TORCH_CHECK(false, message);
  }

 private:
  std::shared_ptr<Runner> runner_;
  Selection inputs_; // of the graph's inputs
  Selection outputs_; // of the code's results
  Failed failed_;
};

// A graph that runs in parts. Values are numbered: the inputs of the graph, then the results of each call in turn.
// Twin: devices/aoti.py, AotiSequence.
struct Sequence : Graph {
  struct Call {
    size_t part;
    Positions inputs, dead, unread;
  };

  variable_list run(variable_list&& inputs) const override {
    variable_list values = std::move(inputs);
    drop(values, unused);
    for (const Call& call : calls) {
      variable_list arguments = selected(values, call.inputs);
      drop(values, call.dead);
      variable_list results = parts.at(call.part)->run(std::move(arguments));
      values.insert(values.end(), std::make_move_iterator(results.begin()), std::make_move_iterator(results.end()));
      drop(values, call.unread);
    }
    return selected(values, outputs);
  }

  std::vector<std::shared_ptr<const Graph>> parts;
  Positions unused;
  std::vector<Call> calls;
  Positions outputs;

 private:
  static variable_list selected(const variable_list& values, const Positions& numbers) {
    variable_list found;
    found.reserve(numbers.size());
    for (size_t number : numbers) {
      found.push_back(values.at(number));
    }
    return found;
  }

  static void drop(variable_list& values, const Positions& numbers) {
    for (size_t number : numbers) {
      values.at(number).reset();
    }
  }
};

} // namespace aotpack
