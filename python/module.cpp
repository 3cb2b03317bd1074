// module.cpp: what the Python package takes from the libraries. python/thimble has the interface for people; arrays go
// there by DLPack and the buffer protocol, exceptions as those of thimble.errors.
#include <nanobind/nanobind.h>

#include "python/bindings.h"
#include "runtime/base/error.h"

namespace nb = nanobind;
using namespace thimble;

namespace {

// Error and what derives from it becomes what thimble.errors.error_of() gives; the rest is nanobind's.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const nb::object made =
        nb::module_::import_("thimble.errors").attr("error_of")(static_cast<int>(error.code()), error.what());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  }
}

}  // namespace

NB_MODULE(_thimble, module) {
  module.attr("__version__") = THIMBLE_VERSION;
  nb::register_exception_translator(translate);
  bind_artifact(module);
  bind_quantizer(module);
  bind_trellis(module);
}
