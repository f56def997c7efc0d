// What native code needs of Python: functions that it calls, and objects for the values of a document.

#pragma once

#include "document.h"

#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>

namespace aotpack {

// torch does not export the type of this hook, so its name stands for a dynamic_cast.
constexpr const char* kPythonHook = "N5torch8autograd23PyFunctionTensorPreHookE";

[[noreturn]] inline void raise_python_error() {
  python_error error;
  error.persist();
  throw error;
}

// The functions that Python sets once. They are never freed: a backward may run while the interpreter ends.
class PythonHost : public Host {
 public:
  void set(const py::object& refuse, const py::object& has_hooks_of_caller) {
    Py_XDECREF(refuse_);
    Py_XDECREF(has_hooks_of_caller_);
    refuse_ = py::object(refuse).release().ptr();
    has_hooks_of_caller_ = py::object(has_hooks_of_caller).release().ptr();
  }

  // Twin: runtime/native.py, refuse.
  [[noreturn]] void refuse(Refusal reason, const std::vector<std::string>& names, const Tensor& gradient) const override {
    py::gil_scoped_acquire gil;
    const py::object value = gradient.defined() ? py::cast(gradient) : py::none();
    THPObjectPtr result(PyObject_CallFunction(refuse_, "iOO", static_cast<int>(reason), py::cast(names).ptr(), value.ptr()));
    raise_python_error();
  }

  // R12. Twin: runtime/result_sources.py, has_hooks_of_caller.
  bool waits_for(const torch::autograd::FunctionPreHook& hook, size_t output) const override {
    if (std::strcmp(typeid(hook).name(), kPythonHook) != 0) {
      return false;
    }
    const auto& python = static_cast<const torch::autograd::PyFunctionTensorPreHook&>(hook);
    if (python.value_idx != output) {
      return false;
    }
    py::gil_scoped_acquire gil;
    THPObjectPtr result(PyObject_CallOneArg(has_hooks_of_caller_, python.dict));
    if (!result) {
      raise_python_error();
    }
    return PyObject_IsTrue(result.get()) == 1;
  }

 private:
  PyObject* refuse_ = nullptr;
  PyObject* has_hooks_of_caller_ = nullptr;
};

inline PythonHost& host() {
  static PythonHost& made = *new PythonHost();
  return made;
}

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

  // Calls the function. The lock must be held.
  THPObjectPtr operator()(PyObject* argument) const {
    THPObjectPtr result(argument == nullptr ? nullptr : PyObject_CallOneArg(function_, argument));
    if (!result) {
      raise_python_error();
    }
    return result;
  }

 private:
  PyObject* function_;
};

class FunctionGraph : public Graph {
 public:
  explicit FunctionGraph(const py::object& function) : function_(function) {}

  variable_list run(variable_list&& inputs) const override {
    py::gil_scoped_acquire gil;
    THPObjectPtr arguments(THPVariable_WrapList(inputs));
    inputs.clear();
    return THPVariable_UnpackList(function_(arguments.get()).get());
  }

  bool reads_memory() const override {
    return false;
  }

 private:
  Function function_;
};

// The code that `open` has opened as a function.
inline std::shared_ptr<Runner> runner_of(const py::object& run) {
  TORCH_CHECK_TYPE(PyCFunction_Check(run.ptr()), "a function that open() returned");
  void* found = PyCapsule_GetPointer(PyCFunction_GetSelf(run.ptr()), "aotpack.runner");
  if (found == nullptr) {
    throw py::error_already_set();
  }
  return *static_cast<std::shared_ptr<Runner>*>(found);
}

// Raises the error that a function of Python raises for a message. Null for None.
inline Failed raising(const py::object& function) {
  if (function.is_none()) {
    return nullptr;
  }
  return [held = std::make_shared<Function>(function)](const std::string& message) {
    py::gil_scoped_acquire gil;
    THPObjectPtr text(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
    (*held)(text.get());
  };
}

// Python's dictionary from names to pairs: a function that runs the code, and one that raises the error for its message.
class Codes : public Names {
 public:
  explicit Codes(const py::dict& codes) : codes_(codes) {}

  std::shared_ptr<Runner> code(const std::string& name) const override {
    return runner_of(found(name, 0));
  }

  Failed failed(const std::string& name) const override {
    return raising(found(name, 1));
  }

  std::shared_ptr<const Graph> function(const std::string& name) const override {
    return std::make_shared<FunctionGraph>(found(name, 0));
  }

 private:
  py::object found(const std::string& name, size_t which) const {
    if (!codes_.contains(name)) {
      throw std::invalid_argument("there is no code called " + name);
    }
    return py::tuple(codes_[name.c_str()])[which];
  }

  const py::dict& codes_;
};

// ---------------------------------------------------------------- values of a document

// Twin: devices/literals.py, literal.
inline py::object literal(const Json& json) {
  const auto real = [](const Json& value) { // a number, or "inf", "-inf" or "nan"
    const py::str text(value.kind() == Json::Kind::string ? value.string() : value.number());
    return py::reinterpret_steal<py::float_>(PyFloat_FromString(text.ptr()));
  };
  switch (json.kind()) {
    case Json::Kind::null:
      return py::none();
    case Json::Kind::boolean:
      return py::bool_(json.boolean());
    case Json::Kind::number: {
      const auto number = py::reinterpret_steal<py::object>(PyLong_FromString(json.number().c_str(), nullptr, 10));
      if (!number) {
        throw py::error_already_set();
      }
      return number;
    }
    case Json::Kind::string:
      return py::str(json.string());
    default:
      return json.object([&](Json::Fields& from) -> py::object {
        const std::string& type = from["type"].string();
        if (type == "float") {
          return real(from["value"]);
        }
        if (type == "complex") {
          const double imaginary = real(from["imag"]);
          return py::reinterpret_steal<py::object>(PyComplex_FromDoubles(real(from["real"]), imaginary));
        }
        const py::module_ torch = py::module_::import("torch");
        if (type == "device") {
          return torch.attr("device")(from["value"].string());
        }
        if (type != "dtype" && type != "layout" && type != "memory_format") {
          throw std::invalid_argument("unknown type " + type);
        }
        return torch.attr(from["value"].string().c_str());
      });
  }
}

} // namespace aotpack
