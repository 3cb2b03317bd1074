// artifact_binding.cpp: artifacts, open and decoded: thimble._thimble.Artifact and state_dict.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "packer/artifact.h"
#include "packer/container/container.h"
#include "packer/embed/tensor_reader.h"
#include "python/array_bridge.h"
#include "python/bindings.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/parallel.h"
#include "runtime/families/model_weights.h"

namespace thimble {
namespace {

namespace nb = nanobind;

// What the tensor's elements become where `name` is asked for: integers stay what they are.
DType element_type(const std::string& name, const TensorEntry& entry) {
  if (!entry.coded() && !is_floating(entry.dtype)) return entry.dtype;
  return dtype_from_name(name, "dtype");
}

// What Artifact.tensors() gives of each: name, shape, stored as, elements, stored bytes.
using TensorRow = std::tuple<std::string, Shape, std::string, uint64_t, double>;

std::optional<Spec> spec_of_file(const ArtifactHeader& header, const std::string& path) {
  const Json config = parse_json(as_bytes_of(header.config_json), path);
  const Family* family = find_family(config, {});
  if (!family || header.banked) return std::nullopt;
  TensorMap shapes;
  for (const TensorEntry& entry : header.tensors)
    shapes.emplace(entry.name, TensorView{entry.coded() ? DType::kF32 : entry.dtype, entry.shape, {}});
  Spec spec = family->resolve(config, shapes, {path, path});
  if (family->hub_config(spec).is_null()) return std::nullopt;
  return spec;
}

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
    std::vector<std::optional<PagedTensor>> made(places.size());
    {
      const nb::gil_scoped_release unlocked;
      parallel_for(static_cast<int64_t>(places.size()), [&](int64_t i) {
        made[static_cast<size_t>(i)].emplace(decoded(places[static_cast<size_t>(i)], dtype));
      });
    }
    std::vector<Array> arrays;
    for (std::optional<PagedTensor>& tensor : made) arrays.push_back(array_of(std::move(*tensor)));
    return arrays;
  }

  // As its family's files have it: name, shape. Of a family that is not known, as the artifact has it.
  std::pair<std::string, Shape> place_in_checkpoint(size_t place) const {
    const TensorEntry& entry = reader_.tensor(checked(place));
    auto [name, tensor] = in_checkpoint(entry.name, {DType::kF32, entry.shape, {}});
    return {std::move(name), std::move(tensor.shape)};
  }
  Array decode_for_checkpoint(size_t place, const std::string& dtype) const {
    std::optional<PagedTensor> tensor;
    std::optional<Tensor> turned;
    {
      const nb::gil_scoped_release unlocked;
      tensor.emplace(decoded(place, dtype));
      if (is_turned(reader_.tensor(place))) {
        const std::span<std::byte> bytes = tensor->bytes();
        Tensor copy{tensor->dtype(), tensor->shape(), {bytes.begin(), bytes.end()}};
        turned = in_checkpoint(reader_.tensor(place).name, std::move(copy)).second;
      }
    }
    return turned ? array_of(std::move(*turned)) : array_of(std::move(*tensor));
  }

  // A FormatError unless the whole file has the checksum that it says of itself.
  void check_bytes() const {
    const nb::gil_scoped_release unlocked;
    read_container(file_.bytes(), file_.path());
  }
  // Gives the memory back that the mapped file takes once it has been read.
  void release_pages() const {
    const Bytes bytes = file_.bytes();
    if (!bytes.empty()) ::madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_DONTNEED);
  }

  // A FormatError unless the whole file has the checksum that it says of itself and every rule of the format holds.
  void check() const {
    const nb::gil_scoped_release unlocked;
    decode_artifact(file_.bytes(), file_.path());
  }

 private:
  size_t checked(size_t place) const {
    if (place >= reader_.header().tensors.size())
      throw UsageError(file_.path() + ": has no tensor " + std::to_string(place));
    return place;
  }

  std::pair<std::string, Tensor> in_checkpoint(const std::string& name, Tensor tensor) const {
    std::call_once(resolved_, [&] { spec_ = spec_of_file(reader_.header(), file_.path()); });
    if (!spec_) return {name, std::move(tensor)};
    std::map<std::string, Tensor> stored = spec_->family->to_file(*spec_, {{name, std::move(tensor)}}, false);
    return {stored.begin()->first, std::move(stored.begin()->second)};
  }

  // Do its family's files have the matrix transposed?
  bool is_turned(const TensorEntry& entry) const {
    const Shape probe{2, 3};
    return entry.shape.size() == 2 && in_checkpoint(entry.name, {DType::kF32, probe, {}}).second.shape != probe;
  }

  PagedTensor decoded(size_t place, const std::string& dtype) const {
    const TensorEntry& entry = reader_.tensor(checked(place));
    PagedTensor tensor(element_type(dtype, entry), entry.shape);
    if (!entry.coded() && tensor.dtype() == entry.dtype) {
      reader_.copy_elements(place, tensor.bytes());
      return tensor;
    }
    // Narrowed run by run: no float32 copy of a whole tensor.
    const uint64_t element_bytes = dtype_bytes(tensor.dtype());
    reader_.decode_values(place, [&](uint64_t first, std::span<const float> some) {
      std::ranges::copy(narrowed(some, tensor.dtype(), entry.name, file_.path()),
                        tensor.bytes().begin() + static_cast<std::ptrdiff_t>(first * element_bytes));
    });
    return tensor;
  }

  MappedFile file_;
  ArtifactSummary summary_;
  TensorReader reader_;
  // Of a family whose tensors go into its files one by one; resolved when it is first asked for.
  mutable std::once_flag resolved_;
  mutable std::optional<Spec> spec_;
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

}  // namespace

void bind_artifact(nb::module_& module) {
  nb::class_<Artifact>(module, "Artifact")
      .def(nb::init<const std::string&>(), nb::arg("path"))
      .def_prop_ro("file_bytes", &Artifact::file_bytes)
      .def_prop_ro("format_version", &Artifact::format_version)
      .def_prop_ro("config", &Artifact::config)
      .def_prop_ro("provenance", &Artifact::provenance)
      .def_prop_ro("banked", &Artifact::banked)
      .def("tensors", &Artifact::tensors)
      .def("decode", &Artifact::decode, nb::arg("places"), nb::arg("dtype"))
      .def("place_in_checkpoint", &Artifact::place_in_checkpoint, nb::arg("place"))
      .def("decode_for_checkpoint", &Artifact::decode_for_checkpoint, nb::arg("place"), nb::arg("dtype"))
      .def("check_bytes", &Artifact::check_bytes)
      .def("release_pages", &Artifact::release_pages)
      .def("check", &Artifact::check);
  module.def("state_dict", &state_dict, nb::arg("path"), nb::arg("dtype"));
}

}  // namespace thimble
