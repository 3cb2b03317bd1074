// module.cpp: what the Python package takes from the libraries. python/thimble has the interface for people; arrays go
// there by DLPack and the buffer protocol, exceptions as those of thimble.errors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "packer/artifact.h"
#include "packer/embed/tensor_reader.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/parallel.h"
#include "runtime/families/model_weights.h"

namespace nb = nanobind;
using namespace thimble;

namespace {

// CPU memory that Python's arrays share and free.
using Array = nb::ndarray<nb::array_api, nb::device::cpu>;

nb::dlpack::dtype dlpack_type(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto type = [&](Code code) {
    return nb::dlpack::dtype{static_cast<uint8_t>(code), static_cast<uint8_t>(8 * dtype_bytes(dtype)), 1};
  };
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
    case DType::kF16: return type(Code::Float);
    case DType::kBF16: return type(Code::Bfloat);
    case DType::kI64:
    case DType::kI32:
    case DType::kI16:
    case DType::kI8: return type(Code::Int);
    case DType::kU16:
    case DType::kU8: return type(Code::UInt);
    case DType::kBool: return type(Code::Bool);
  }
  throw UsageError("an unknown element type");
}

// Takes the tensor's bytes over; the interpreter must be held.
Array array_of(Tensor tensor) {
  auto owned = std::make_unique<Tensor>(std::move(tensor));
  const std::vector<size_t> shape(owned->shape.begin(), owned->shape.end());
  void* data = owned->bytes.data();
  const nb::dlpack::dtype type = dlpack_type(owned->dtype);
  nb::capsule owner(owned.get(), [](void* held) noexcept { delete static_cast<Tensor*>(held); });
  owned.release();
  return Array(data, shape.size(), shape.data(), owner, nullptr, type);
}

// What the tensor's elements become where `name` is asked for: integers stay what they are.
DType element_type(const std::string& name, const TensorEntry& entry) {
  if (!entry.coded() && !is_floating(entry.dtype)) return entry.dtype;
  return dtype_from_name(name, "dtype");
}

// What Artifact.tensors() gives of each: name, shape, stored as, elements, stored bytes.
using TensorRow = std::tuple<std::string, Shape, std::string, uint64_t, double>;

// An artifact that is open: its front is read and checked. Decoding reads the mapped file.
class Artifact {
 public:
  explicit Artifact(const std::string& path)
      : file_(path), summary_(describe_artifact(file_.bytes(), path)), reader_(ArtifactBytes(file_.bytes()), path) {}

  uint64_t file_bytes() const { return summary_.file_bytes; }
  uint32_t format_version() const { return summary_.format_version; }
  const std::string& config() const { return summary_.config_json; }
  const std::string& provenance() const { return summary_.provenance_json; }
  bool banked() const { return summary_.banked; }

  std::vector<TensorRow> tensors() const {
    std::vector<TensorRow> rows;
    for (const StoredTensorSummary& tensor : summary_.tensors)
      rows.emplace_back(tensor.name, tensor.shape, tensor.precision, tensor.elements, tensor.stored_bytes);
    return rows;
  }

  // Tensors of these places in tensors(), all at once on all threads. Memory: the results, and decode_memory() a
  // thread.
  std::vector<Array> decode(const std::vector<size_t>& places, const std::string& dtype) const {
    std::vector<Tensor> made(places.size());
    {
      const nb::gil_scoped_release unlocked;
      parallel_for(static_cast<int64_t>(places.size()),
                   [&](int64_t i) { made[static_cast<size_t>(i)] = decoded(places[static_cast<size_t>(i)], dtype); });
    }
    std::vector<Array> arrays;
    for (Tensor& tensor : made) arrays.push_back(array_of(std::move(tensor)));
    return arrays;
  }

  // A FormatError unless the whole file has the checksum that it says of itself and every rule of the format holds.
  void check() const {
    const nb::gil_scoped_release unlocked;
    decode_artifact(file_.bytes(), file_.path());
  }

 private:
  Tensor decoded(size_t place, const std::string& dtype) const {
    if (place >= reader_.header().tensors.size())
      throw UsageError(file_.path() + ": has no tensor " + std::to_string(place));
    const TensorEntry& entry = reader_.tensor(place);
    Tensor tensor{element_type(dtype, entry), entry.shape, {}};
    if (!entry.coded() && tensor.dtype == entry.dtype) {
      tensor.bytes.resize(entry.content_bytes());
      reader_.copy_elements(place, tensor.bytes);
      return tensor;
    }
    std::vector<float> values(entry.elements());
    reader_.decode_values(place, [&](uint64_t first, std::span<const float> some) {
      std::ranges::copy(some, values.begin() + static_cast<std::ptrdiff_t>(first));
    });
    tensor.bytes = narrowed(values, tensor.dtype, entry.name, file_.path());
    return tensor;
  }

  MappedFile file_;
  ArtifactSummary summary_;
  TensorReader reader_;
};

// Those of checkpoint_tensors(), by name.
nb::dict state_dict(const std::string& path, const std::string& dtype) {
  std::map<std::string, Tensor> tensors;
  {
    const nb::gil_scoped_release unlocked;
    const MappedFile file(path);
    tensors = checkpoint_tensors(decode_artifact(file.bytes(), path), dtype_from_name(dtype, "dtype"), path);
  }
  nb::dict result;
  for (auto& [name, tensor] : tensors) result[name.c_str()] = array_of(std::move(tensor));
  return result;
}

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
  nb::class_<Artifact>(module, "Artifact")
      .def(nb::init<const std::string&>(), nb::arg("path"))
      .def_prop_ro("file_bytes", &Artifact::file_bytes)
      .def_prop_ro("format_version", &Artifact::format_version)
      .def_prop_ro("config", &Artifact::config)
      .def_prop_ro("provenance", &Artifact::provenance)
      .def_prop_ro("banked", &Artifact::banked)
      .def("tensors", &Artifact::tensors)
      .def("decode", &Artifact::decode, nb::arg("places"), nb::arg("dtype"))
      .def("check", &Artifact::check);
  module.def("state_dict", &state_dict, nb::arg("path"), nb::arg("dtype"));
}
