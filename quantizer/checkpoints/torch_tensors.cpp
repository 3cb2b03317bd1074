// torch_tensors.cpp: storages, strides and gathering for torch_tensors.h.
#include "quantizer/checkpoints/torch_tensors.h"

#include <fmt/format.h>

#include <cstring>

#include "quantizer/console/quoted_name.h"
#include "runtime/base/checked.h"

namespace thimble {
namespace {

constexpr size_t kMaxStorageKeyBytes = 64;

// Arguments of the rebuild functions, by position.
enum Argument : size_t { kStorage, kOffset, kShape, kStrides, kRequiresGrad, kHooks, kDtypeOrMetadata, kMetadata };

// Row-major without gaps; the stride of a dimension of 1 means nothing.
bool is_contiguous(const Shape& shape, const Shape& strides) {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// Elements from the storage's first to the tensor's last one, inclusive. The tensor is not empty.
uint64_t reach_in_elements(int64_t offset, const Shape& shape, const Shape& strides, const std::string& where) {
  uint64_t last = static_cast<uint64_t>(offset);
  for (size_t i = 0; i < shape.size(); ++i)
    last = add_or_throw(
        last, mul_or_throw(static_cast<uint64_t>(shape[i] - 1), static_cast<uint64_t>(strides[i]), where), where);
  return add_or_throw(last, 1, where);
}

}  // namespace

TorchTensors::TorchTensors(const Pickle& pickle, const ZipArchive& archive, std::string prefix, std::string path,
                           CrcCheck check, uint64_t gather_limit_bytes)
    : pickle_(pickle),
      archive_(archive),
      prefix_(std::move(prefix)),
      path_(std::move(path)),
      check_(check),
      gather_left_bytes_(gather_limit_bytes) {}

const TorchGlobal* TorchTensors::global(PickleIndex value) const {
  const PickleValue& found = pickle_[value];
  return found.kind == PickleKind::kGlobal ? &kTorchGlobals[static_cast<size_t>(found.integer())] : nullptr;
}

const TorchGlobal* TorchTensors::called(PickleIndex value) const {
  const PickleValue& call = pickle_[value];
  return call.kind == PickleKind::kCall ? global(call.items().front()) : nullptr;
}

bool TorchTensors::is_tensor(PickleIndex value) const {
  const TorchGlobal* callable = called(value);
  return callable != nullptr &&
         (callable->role == TorchRole::kTensor || callable->role == TorchRole::kTensorWithDtype ||
          callable->role == TorchRole::kParameter);
}

const std::vector<PickleIndex>& TorchTensors::arguments(PickleIndex call, size_t least,
                                                        const std::string& where) const {
  const std::vector<PickleIndex>& items = pickle_[pickle_[call].items().back()].items();
  if (items.size() < least)
    throw FormatError(where, fmt::format("{} has {} arguments, at least {} expected", called(call)->global.name,
                                         items.size(), least));
  return items;
}

TensorView TorchTensors::read(PickleIndex value, std::string_view name) {
  std::string where = path_ + ": tensor " + quoted_name(name);
  if (called(value)->role == TorchRole::kParameter) {
    value = arguments(value, 1, where).front();
    if (!is_tensor(value) || called(value)->role == TorchRole::kParameter)
      throw FormatError(where, "is a parameter around something that is not a tensor");
  }
  return read_rebuild(value, where);
}

TensorView TorchTensors::read_rebuild(PickleIndex call, const std::string& where) {
  bool has_dtype = called(call)->role == TorchRole::kTensorWithDtype;
  const std::vector<PickleIndex>& items = arguments(call, has_dtype ? kDtypeOrMetadata + 1 : kStrides + 1, where);
  Storage storage = read_storage(items[kStorage], where);
  TensorView tensor;
  tensor.dtype = storage.dtype;
  if (has_dtype) {
    const TorchGlobal* dtype = global(items[kDtypeOrMetadata]);
    if (dtype == nullptr || dtype->role != TorchRole::kDtype) throw FormatError(where, "has no dtype that we know");
    tensor.dtype = dtype->dtype;
  } else if (storage.role == TorchRole::kUntypedStorage) {
    throw FormatError(where, "has an untyped storage and no dtype");
  }
  size_t metadata = has_dtype ? kMetadata : kDtypeOrMetadata;
  if (items.size() > metadata) {
    const PickleValue& flags = pickle_[items[metadata]];
    if (flags.kind != PickleKind::kNone && (flags.kind != PickleKind::kDict || !flags.items().empty()))
      throw FormatError(where, "has metadata (a conjugate or negative view), only plain tensors are read");
  }

  int64_t offset = read_size(items[kOffset], "storage offset", where);
  tensor.shape = read_sizes(items[kShape], "shape", where);
  Shape strides = read_sizes(items[kStrides], "strides", where);
  if (strides.size() != tensor.shape.size())
    throw FormatError(
        where, fmt::format("shape {} and strides {} differ in length", shape_text(tensor.shape), shape_text(strides)));
  uint64_t count = element_count_or_throw(tensor.shape, where);
  uint64_t width = dtype_bytes(tensor.dtype);
  uint64_t held = storage.bytes.size() / width;
  if (count == 0) return tensor;
  uint64_t reach = reach_in_elements(offset, tensor.shape, strides, where);
  if (reach > held)
    throw FormatError(where, fmt::format("shape {}, strides {} and offset {} reach {} elements into a storage of {}",
                                         shape_text(tensor.shape), shape_text(strides), offset, reach, held));
  Bytes from_offset = storage.bytes.subspan(static_cast<uint64_t>(offset) * width);
  if (is_contiguous(tensor.shape, strides))
    tensor.bytes = from_offset.first(count * width);
  else
    tensor.bytes = gather(from_offset, tensor, count, strides, where);
  return tensor;
}

// The persistent id ("storage", class, key, device, element count).
TorchTensors::Storage TorchTensors::read_storage(PickleIndex value, const std::string& where) {
  constexpr size_t kParts = 5;
  const PickleValue& reference = pickle_[value];
  if (reference.kind != PickleKind::kPersistent) throw FormatError(where, "its storage is not a persistent id");
  const PickleValue& id = pickle_[reference.items().front()];
  if (id.kind != PickleKind::kTuple || id.items().size() != kParts)
    throw FormatError(where, "its storage id is not a tuple of 5 values");
  const PickleValue& tag = pickle_[id.items()[0]];
  const TorchGlobal* type = global(id.items()[1]);
  const PickleValue& key = pickle_[id.items()[2]];
  if (tag.kind != PickleKind::kText || tag.text() != "storage")
    throw FormatError(where, "its storage id does not start with 'storage'");
  if (type == nullptr || (type->role != TorchRole::kStorage && type->role != TorchRole::kUntypedStorage))
    throw FormatError(where, "its storage id names no storage class");
  if (key.kind != PickleKind::kText || key.text().size() > kMaxStorageKeyBytes)
    throw FormatError(where, fmt::format("its storage key is not a text of at most {} B", kMaxStorageKeyBytes));
  int64_t count = read_size(id.items()[4], "storage size", where);

  std::string entry = prefix_ + "/data/" + std::string(key.text());
  bool first_use = verified_.insert(entry).second;
  Storage storage{type->role, type->dtype, archive_.read(entry, first_use ? check_ : CrcCheck::kSkip)};
  uint64_t needed = mul_or_throw(static_cast<uint64_t>(count), dtype_bytes(type->dtype), where);
  if (storage.bytes.size() != needed)
    throw FormatError(where, fmt::format("its storage needs {} B, zip entry {} holds {} B", needed, quoted_name(entry),
                                         storage.bytes.size()));
  return storage;
}

int64_t TorchTensors::read_size(PickleIndex value, const char* object, const std::string& where) const {
  const PickleValue& size = pickle_[value];
  if (size.kind != PickleKind::kInt || size.integer() < 0)
    throw FormatError(where, fmt::format("its {} is not an integer from 0 to 2^63 - 1", object));
  return size.integer();
}

Shape TorchTensors::read_sizes(PickleIndex value, const char* object, const std::string& where) const {
  const TorchGlobal* callable = called(value);
  if (callable != nullptr && callable->role == TorchRole::kShape) value = arguments(value, 1, where).front();
  const PickleValue& sizes = pickle_[value];
  if (sizes.kind != PickleKind::kTuple || sizes.items().size() > kMaxTorchRank)
    throw FormatError(where, fmt::format("its {} is not a tuple of at most {} integers", object, kMaxTorchRank));
  Shape result;
  for (PickleIndex item : sizes.items()) result.push_back(read_size(item, object, where));
  return result;
}

// Copies element by element in row-major order: an odometer over the dimensions. `storage` starts at the first element.
Bytes TorchTensors::gather(Bytes storage, const TensorView& tensor, uint64_t count, const Shape& strides,
                           const std::string& where) {
  size_t width = dtype_bytes(tensor.dtype);
  uint64_t needed = mul_or_throw(count, width, where);
  if (needed > gather_left_bytes_)
    throw FormatError(where, fmt::format("shape {} with strides {} needs {} B in memory, {} B are allowed: save "
                                         "tensor.contiguous() instead of a view",
                                         shape_text(tensor.shape), shape_text(strides), needed, gather_left_bytes_));
  gather_left_bytes_ -= needed;
  ByteVector& out = gathered_.emplace_back(needed);
  Shape position(tensor.shape.size(), 0);
  int64_t element = 0;  // where `position` lies in the storage
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(out.data() + i * width, storage.data() + static_cast<size_t>(element) * width, width);
    for (size_t d = position.size(); d-- > 0;) {
      if (++position[d] < tensor.shape[d]) {
        element += strides[d];
        break;
      }
      element -= strides[d] * (tensor.shape[d] - 1);
      position[d] = 0;
    }
  }
  return out;
}

}  // namespace thimble
