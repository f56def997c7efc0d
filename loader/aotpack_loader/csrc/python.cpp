// The module `aotpack_call`: what Python passes to a native call, and what it gets. spec/native-call.md documents it.
//
// "Twin" names what computes the same in the loader's Python, after the rules of spec/ that it implements. A change of one is a
// change of both. Tests compare them on every row of the conformance table.
//
// A call reports no errors of arguments. If anything does not fit or is unusual, it returns None before any code has run. Then
// Python makes the call, or raises.

#include "python_host.h"
#include "update.h"

namespace aotpack {

namespace {

constexpr int64_t kInterface = 4;

// ---------------------------------------------------------------- opened code

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

template <typename T>
py::object function_over(PyMethodDef* definition, T* object, const char* name) {
  const auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(object, name, [](PyObject* one) {
    delete static_cast<T*>(PyCapsule_GetPointer(one, PyCapsule_GetName(one)));
  }));
  return py::reinterpret_steal<py::object>(PyCFunction_New(definition, capsule.ptr()));
}

py::object open(const std::string& library) {
  static PyMethodDef definition = {"run", run_list, METH_O, nullptr};
  return function_over(&definition, new std::shared_ptr<Runner>(std::make_shared<Runner>(library)), "aotpack.runner");
}

py::object interned(const std::string& text) {
  return py::reinterpret_steal<py::object>(PyUnicode_InternFromString(text.c_str()));
}

// A method, and the objects that Python compares and gets.
struct PythonMethod {
  Method method;
  std::vector<py::object> constant_leaves, state, constant_results; // names of the state; others null where there is none
  std::vector<std::pair<py::object, py::object>> ties;

  explicit PythonMethod(Method&& made) : method(std::move(made)) {
    for (const ExpectedLeaf& leaf : method.leaves) {
      constant_leaves.push_back(leaf.constant ? literal(*leaf.constant) : py::object());
    }
    for (const State& entry : method.state) {
      state.push_back(interned(entry.name));
    }
    for (const auto& [one, other] : method.ties) {
      ties.emplace_back(interned(one), interned(other));
    }
    for (const Result& result : method.results) {
      constant_results.push_back(
          result.kind == ResultKind::constant   ? literal(*result.constant)
              : result.kind == ResultKind::size ? py::object(py::int_(result.size))
                                                : py::object());
    }
  }
};

// ---------------------------------------------------------------- a call

// A7. Twin: runtime/inputs.py, _constant_check.
bool is_constant(PyObject* constant, PyObject* value) {
  return value == constant || (Py_TYPE(value) == Py_TYPE(constant) && PyObject_RichCompareBool(value, constant, Py_EQ) == 1);
}

// The tensor of an object that fits, or null.
const Tensor* fitting(const ExpectedTensor& expected, PyObject* value, bool grad) {
  if (value == nullptr || !THPVariable_CheckExact(value)) {
    return nullptr;
  }
  const Tensor& tensor = THPVariable_Unpack(value);
  return fits(expected, tensor, grad) ? &tensor : nullptr;
}

// The tensors of a call: of leaves, state and constants. False if one does not fit.
// A4, A7, A20, A21. Twin: runtime/inputs.py, Inputs; runtime/state.py, State.
bool collect(const PythonMethod& python, PyObject* leaves, PyObject* slots, bool grad, Values& found) {
  const Method& method = python.method;
  const size_t count = method.leaves.size();
  if (static_cast<size_t>(PySequence_Fast_GET_SIZE(leaves)) != count) {
    return false;
  }
  found.reserve(count + method.state.size() + method.constants.size());
  for (size_t i = 0; i < count; ++i) {
    PyObject* value = PySequence_Fast_GET_ITEM(leaves, i);
    const auto& expected = method.leaves[i].tensor;
    const Tensor* tensor = expected ? fitting(*expected, value, grad) : nullptr;
    if (expected ? tensor == nullptr : !is_constant(python.constant_leaves[i].ptr(), value)) {
      return false;
    }
    found.push_back(tensor);
  }
  const auto held = [&](const py::object& name) -> PyObject* {
    PyObject* slot = PyDict_GetItemWithError(slots, name.ptr());
    return slot == nullptr ? nullptr : PyDict_GetItemWithError(PyTuple_GET_ITEM(slot, 0), PyTuple_GET_ITEM(slot, 1));
  };
  for (size_t i = 0; i < method.state.size(); ++i) {
    const Tensor* tensor = fitting(method.state[i].tensor, held(python.state[i]), grad);
    if (tensor == nullptr) {
      return false;
    }
    found.push_back(tensor);
  }
  for (const auto& [one, other] : python.ties) {
    if (held(one) != held(other)) {
      return false;
    }
  }
  for (const Tensor& constant : method.constants) {
    found.push_back(&constant);
  }
  return true;
}

PyObject* results_of(const PythonMethod& python, const Called& called) {
  const auto& results = python.method.results;
  THPObjectPtr list(PyList_New(static_cast<Py_ssize_t>(results.size())));
  for (size_t i = 0; list && i < results.size(); ++i) {
    const Result& result = results[i];
    PyObject* value = result.kind == ResultKind::output ? THPVariable_Wrap(called.outputs.at(result.position))
        : result.kind == ResultKind::primal             ? THPVariable_Wrap(called.primals.at(result.position))
                                                        : Py_NewRef(python.constant_results[i].ptr());
    if (value == nullptr) {
      return nullptr;
    }
    PyList_SET_ITEM(list.get(), i, value);
  }
  return list.release();
}

PyObject* call_method(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const auto& python = *static_cast<PythonMethod*>(PyCapsule_GetPointer(self, "aotpack.method"));
  const Method& method = python.method;
  TORCH_CHECK_TYPE(count == 2 && PyDict_Check(arguments[1]), "call(leaves, slots)");
  TORCH_CHECK_TYPE(PyTuple_Check(arguments[0]) || PyList_Check(arguments[0]), "call(leaves, slots)");
  const bool grad = at::GradMode::is_enabled();
  if (!takes_modes(method)) {
    Py_RETURN_NONE;
  }
  Values values;
  const bool fit = collect(python, arguments[0], arguments[1], grad, values);
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  if (!fit || !takes_memory(method, values, grad)) {
    Py_RETURN_NONE;
  }
  variable_list primals;
  primals.reserve(method.primals.size());
  for (size_t i : method.primals) {
    primals.push_back(*values.at(i));
  }
  Called called;
  {
    py::gil_scoped_release no_gil;
    called = call(method, std::move(primals), grad);
  }
  return results_of(python, called);
  END_HANDLE_TH_ERRORS
}

// ---------------------------------------------------------------- documents

Document read(const std::string& text) {
  try {
    return Document(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("no description of a native call: ") + error.what());
  }
}

// The sizes of a call in the order of the symbols; None if an argument does not fit.
// A2. Twin: runtime/inputs.py, TensorCheck.
py::object sizes_of(const Document& document, const py::sequence& leaves) {
  py::tuple found(document.symbols.size());
  for (size_t i = 0; i < document.symbols.size(); ++i) {
    const Symbol& symbol = document.symbols[i];
    const py::object leaf = leaves[symbol.leaf];
    if (!THPVariable_CheckExact(leaf.ptr())) {
      return py::none();
    }
    const Tensor& tensor = THPVariable_Unpack(leaf.ptr());
    if (tensor.key_set() != ordinary_keys() || static_cast<size_t>(tensor.dim()) != symbol.rank) {
      return py::none();
    }
    const int64_t size = tensor.size(static_cast<int64_t>(symbol.dim));
    if (size < symbol.minimum || (symbol.maximum && size > *symbol.maximum)) {
      return py::none();
    }
    found[i] = py::int_(size);
  }
  return found;
}

std::vector<std::string> names_of_symbols(const Document& document) {
  std::vector<std::string> found;
  for (const Symbol& symbol : document.symbols) {
    found.push_back(symbol.name);
  }
  return found;
}

py::object make(const Document& document, const py::dict& codes, const variable_list& constants, const Sizes& sizes) {
  static PyMethodDef definition = {
      "call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_method)), METH_FASTCALL, nullptr};
  Method method = document.method(sizes, Codes(codes), constants, host());
  return function_over(&definition, new PythonMethod(std::move(method)), "aotpack.method");
}

// ---------------------------------------------------------------- updates

// Whether nothing has taken the place of a parameter's state, and its gradient fits.
// Twin: optimizer/updates.py, PythonRow.
bool row_fits(const Row& row, const py::dict& state) {
  size_t i = 1;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(state.ptr(), &at, &key, &value) != 0; ++i) {
    if (i == row.held.size() || !THPVariable_CheckExact(value) || !THPVariable_Unpack(value).is_same(row.held[i].tensor) ||
        !row.held[i].holds()) {
      return false;
    }
  }
  return i == row.held.size() && Update::takes_gradient(row);
}

void run_update(const Update& update, const std::vector<const Row*>& rows, const variable_list& numbers) {
  update.run(rows, numbers);
}

std::shared_ptr<Update> update_of(
    const py::object& run,
    const std::pair<Positions, Positions>& positions,
    const py::object& failed,
    Positions&& inputs,
    std::vector<std::pair<size_t, size_t>>&& writes,
    std::vector<bool>&& alike,
    bool flat,
    variable_list&& constants) {
  auto code = std::make_shared<Code>(runner_of(run), positions.first, positions.second, raising(failed));
  return std::make_shared<Update>(
      UpdateMethod{std::move(code), std::move(inputs), std::move(writes), std::move(alike), flat, std::move(constants)});
}

} // namespace

} // namespace aotpack

PYBIND11_MODULE(aotpack_call, module) {
  using aotpack::Document;
  module.attr("interface") = aotpack::kInterface;
  module.def("open", &aotpack::open);
  module.def("outputs", [](const py::object& run) { return aotpack::runner_of(run)->outputs(); });
  module.def("on_refusal", [](const py::object& refuse, const py::object& has_hooks_of_caller) {
    aotpack::host().set(refuse, has_hooks_of_caller);
  });
  module.def("read", &aotpack::read);
  py::class_<Document>(module, "Document", py::module_local())
      .def_property_readonly("symbols", &aotpack::names_of_symbols)
      .def_readonly("constraints", &Document::constraints)
      .def_readonly("expressions", &Document::expressions)
      .def_readonly("is_differentiable", &Document::is_differentiable)
      .def("sizes", &aotpack::sizes_of)
      .def("make", &aotpack::make);
  module.def("update", &aotpack::update_of);
  py::class_<aotpack::Row>(module, "Row", py::module_local()).def("fits", &aotpack::row_fits);
  py::class_<aotpack::Update, std::shared_ptr<aotpack::Update>>(module, "Update", py::module_local())
      .def("row", &aotpack::Update::row)
      .def("run", torch::wrap_pybind_function_no_gil(&aotpack::run_update));
}
