// torch_checkpoint.cpp: finds the archive's parts and the state dict inside its pickle, and turns the rebuild calls
// that the pickle records into views of the storages' bytes; a tensor whose strides are not row-major contiguous (a
// transposed view, say) is gathered into memory. Every offset, shape and stride is checked against its storage first.
// Gradient flags and hooks are ignored. Non-goals: sparse, quantized, complex, conjugate and negative-view tensors.
#include "quantizer/formats/torch_checkpoint.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>

#include "quantizer/console/quoted_name.h"
#include "quantizer/formats/pickle.h"
#include "quantizer/formats/torch_globals.h"
#include "runtime/base/checked.h"

namespace thimble {
namespace {

constexpr std::array<std::string_view, 8> kStateDictKeys = {"model",     "state_dict", "model_state_dict", "module",
                                                            "model_ema", "ema",        "ema_state_dict",   "weights"};
constexpr std::array<std::string_view, 4> kConfigKeys = {"config", "model_config", "model_args", "args"};
constexpr std::string_view kPickleName = "/data.pkl";
constexpr int kMaxArchiveVersion = 10;
constexpr size_t kShownKeys = 20;
constexpr int kMaxStateDictDepth = 16;
constexpr size_t kMaxStorageKeyBytes = 64;
// Sharing makes a walk over a pickle longer than the pickle: a config may cost this much (values and text bytes).
constexpr uint64_t kMaxConfigCost = uint64_t{1} << 20;

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
  auto last = static_cast<uint64_t>(offset);
  for (size_t i = 0; i < shape.size(); ++i)
    last = add_or_throw(
        last, mul_or_throw(static_cast<uint64_t>(shape[i] - 1), static_cast<uint64_t>(strides[i]), where), where);
  return add_or_throw(last, 1, where);
}

// The tensors of a pickle, whose storages are the entries "<prefix>/data/<key>" of the archive.
class TensorReader {
 public:
  // Tensors that must be gathered may take `gather_limit_bytes` together, so that views which repeat elements cannot
  // blow a small file up.
  TensorReader(const Pickle& pickle, ZipArchive& archive, const std::string& prefix, const std::string& path,
               uint64_t gather_limit_bytes)
      : pickle_(pickle), archive_(archive), prefix_(prefix), path_(path), gather_left_bytes_(gather_limit_bytes) {}

  bool is_tensor(PickleIndex value) const {
    const TorchGlobal* callable = called(value);
    return callable != nullptr &&
           (callable->role == TorchRole::kTensor || callable->role == TorchRole::kTensorWithDtype ||
            callable->role == TorchRole::kParameter);
  }

  // `value` must be a tensor; `name` names it in errors.
  TensorView read(PickleIndex value, std::string_view name) {
    std::string where = path_ + ": tensor " + quoted_name(name);
    if (called(value)->role == TorchRole::kParameter) {
      value = arguments(value, 1, where).front();
      if (!is_tensor(value) || called(value)->role == TorchRole::kParameter)
        throw FormatError(where, "is a parameter around something that is not a tensor");
    }
    return read_rebuild(value, where);
  }

  // The memory behind the gathered tensors; the views stay valid when it is moved.
  std::vector<HeldBytes> gathered() && { return std::move(gathered_); }

 private:
  struct Storage {
    const TorchGlobal* type;
    Bytes bytes;
  };

  const TorchGlobal* global(PickleIndex value) const {
    const PickleValue& found = pickle_[value];
    return found.kind == PickleKind::kGlobal ? &kTorchGlobals[static_cast<size_t>(found.integer())] : nullptr;
  }

  const TorchGlobal* called(PickleIndex value) const {
    const PickleValue& call = pickle_[value];
    return call.kind == PickleKind::kCall ? global(call.items().front()) : nullptr;
  }

  const std::vector<PickleIndex>& arguments(PickleIndex call, size_t least, const std::string& where) const {
    const std::vector<PickleIndex>& items = pickle_[pickle_[call].items().back()].items();
    if (items.size() < least)
      throw FormatError(where, fmt::format("{} has {} arguments, at least {} expected", called(call)->global.name,
                                           items.size(), least));
    return items;
  }

  TensorView read_rebuild(PickleIndex call, const std::string& where) {
    const bool has_dtype = called(call)->role == TorchRole::kTensorWithDtype;
    const std::vector<PickleIndex>& items = arguments(call, has_dtype ? kDtypeOrMetadata + 1 : kStrides + 1, where);
    const Storage storage = read_storage(items[kStorage], where);
    TensorView tensor;
    tensor.dtype = storage.type->dtype;
    if (has_dtype) {
      const TorchGlobal* dtype = global(items[kDtypeOrMetadata]);
      if (dtype == nullptr || dtype->role != TorchRole::kDtype) throw FormatError(where, "has no dtype that we know");
      tensor.dtype = dtype->dtype;
    } else if (storage.type->role == TorchRole::kUntypedStorage) {
      throw FormatError(where, "has an untyped storage and no dtype");
    }
    if (const size_t metadata = has_dtype ? kMetadata : kDtypeOrMetadata; items.size() > metadata) {
      const PickleValue& flags = pickle_[items[metadata]];
      if (flags.kind != PickleKind::kNone && (flags.kind != PickleKind::kDict || !flags.items().empty()))
        throw FormatError(where, "has metadata (a conjugate or negative view), only plain tensors are read");
    }
    const int64_t offset = read_size(items[kOffset], "storage offset", where);
    tensor.shape = read_sizes(items[kShape], "shape", where);
    tensor.bytes = find_elements(storage.bytes, tensor, offset, read_sizes(items[kStrides], "strides", where), where);
    return tensor;
  }

  // The tensor's bytes: of the storage where they lie there in their order.
  Bytes find_elements(Bytes storage, const TensorView& tensor, int64_t offset, const Shape& strides,
                      const std::string& where) {
    const Shape& shape = tensor.shape;
    if (strides.size() != shape.size())
      throw FormatError(
          where, fmt::format("shape {} and strides {} differ in length", shape_text(shape), shape_text(strides)));
    const uint64_t count = element_count_or_throw(shape, where), width = dtype_bytes(tensor.dtype);
    if (count == 0) return {};
    const uint64_t held = storage.size() / width, reach = reach_in_elements(offset, shape, strides, where);
    if (reach > held)
      throw FormatError(where, fmt::format("shape {}, strides {} and offset {} reach {} elements into a storage of {}",
                                           shape_text(shape), shape_text(strides), offset, reach, held));
    const Bytes from_offset = storage.subspan(static_cast<uint64_t>(offset) * width);
    if (is_contiguous(shape, strides)) return from_offset.first(count * width);
    const uint64_t needed = mul_or_throw(count, width, where);
    if (needed > gather_left_bytes_)
      throw FormatError(where, fmt::format("shape {} with strides {} needs {} B in memory, {} B are allowed: save "
                                           "tensor.contiguous() instead of a view",
                                           shape_text(shape), shape_text(strides), needed, gather_left_bytes_));
    gather_left_bytes_ -= needed;
    return gathered_.emplace_back(hold(gather(from_offset, shape, strides, count, width))).bytes;
  }

  // Copies element by element in row-major order: an odometer over the dimensions. `storage` starts at the first one.
  static ByteVector gather(Bytes storage, const Shape& shape, const Shape& strides, uint64_t count, size_t width) {
    ByteVector out(count * width);
    Shape position(shape.size(), 0);
    int64_t element = 0;  // where `position` lies in the storage
    for (uint64_t i = 0; i < count; ++i) {
      std::memcpy(out.data() + i * width, storage.data() + static_cast<size_t>(element) * width, width);
      for (size_t d = position.size(); d-- > 0;) {
        if (++position[d] < shape[d]) {
          element += strides[d];
          break;
        }
        element -= strides[d] * (shape[d] - 1);
        position[d] = 0;
      }
    }
    return out;
  }

  // The persistent id ("storage", class, key, device, element count).
  Storage read_storage(PickleIndex value, const std::string& where) {
    constexpr size_t kParts = 5;
    const PickleValue& reference = pickle_[value];
    if (reference.kind != PickleKind::kPersistent) throw FormatError(where, "its storage is not a persistent id");
    const PickleValue& id = pickle_[reference.items().front()];
    if (id.kind != PickleKind::kTuple || id.items().size() != kParts)
      throw FormatError(where, "its storage id is not a tuple of 5 values");
    if (pickle_.text(id.items()[0]) != "storage")
      throw FormatError(where, "its storage id does not start with 'storage'");
    const TorchGlobal* type = global(id.items()[1]);
    if (type == nullptr || (type->role != TorchRole::kStorage && type->role != TorchRole::kUntypedStorage))
      throw FormatError(where, "its storage id names no storage class");
    const std::optional<std::string_view> key = pickle_.text(id.items()[2]);
    if (!key || key->size() > kMaxStorageKeyBytes)
      throw FormatError(where, fmt::format("its storage key is not a text of at most {} B", kMaxStorageKeyBytes));
    const int64_t count = read_size(id.items()[4], "storage size", where);

    const std::string entry = prefix_ + "/data/" + std::string(*key);
    const Bytes bytes = archive_.read(entry);
    const uint64_t needed = mul_or_throw(static_cast<uint64_t>(count), dtype_bytes(type->dtype), where);
    if (bytes.size() != needed)
      throw FormatError(where, fmt::format("its storage needs {} B, zip entry {} holds {} B", needed,
                                           quoted_name(entry), bytes.size()));
    return {type, bytes};
  }

  int64_t read_size(PickleIndex value, const char* object, const std::string& where) const {
    const PickleValue& size = pickle_[value];
    if (size.kind != PickleKind::kInt || size.integer() < 0)
      throw FormatError(where, fmt::format("its {} is not an integer from 0 to 2^63 - 1", object));
    return size.integer();
  }

  Shape read_sizes(PickleIndex value, const char* object, const std::string& where) const {
    const TorchGlobal* callable = called(value);
    if (callable != nullptr && callable->role == TorchRole::kShape) value = arguments(value, 1, where).front();
    const PickleValue& sizes = pickle_[value];
    if (sizes.kind != PickleKind::kTuple || sizes.items().size() > kMaxTorchRank)
      throw FormatError(where, fmt::format("its {} is not a tuple of at most {} integers", object, kMaxTorchRank));
    Shape result;
    for (PickleIndex item : sizes.items()) result.push_back(read_size(item, object, where));
    return result;
  }

  const Pickle& pickle_;
  ZipArchive& archive_;
  const std::string& prefix_;
  const std::string& path_;
  uint64_t gather_left_bytes_;
  std::vector<HeldBytes> gathered_;
};

// The folder that holds data.pkl, which torch.save names after the file.
std::string find_prefix(const ZipArchive& archive, const std::string& path) {
  std::optional<std::string> prefix;
  for (const auto& [name, entry] : archive.entries()) {
    if (!name.ends_with(kPickleName) || name.find('/') != name.size() - kPickleName.size()) continue;
    if (prefix) throw FormatError(path, "holds several data.pkl: not a file of torch.save");
    prefix = name.substr(0, name.size() - kPickleName.size());
  }
  if (!prefix) throw FormatError(path, "is a zip archive without <prefix>/data.pkl: not a file of torch.save");
  if (archive.contains(*prefix + "/constants.pkl"))
    throw FormatError(path, "is a TorchScript archive: save model.state_dict() instead");
  return *prefix;
}

void check_archive_marks(ZipArchive& archive, const std::string& prefix, const std::string& path) {
  if (std::string name = prefix + "/byteorder"; archive.contains(name)) {
    std::string_view order = as_text(archive.read(name));
    if (order != "little") throw FormatError(path, "byteorder is " + quoted_name(order) + ", must be 'little'");
  }
  if (std::string name = prefix + "/version"; archive.contains(name)) {
    std::string_view text = as_text(archive.read(name));
    int version = 0;
    std::string_view digits = text.substr(0, text.find('\n'));
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), version);
    if (error != std::errc() || end != digits.data() + digits.size() || version < 1 || version > kMaxArchiveVersion)
      throw FormatError(path,
                        fmt::format("archive version {}, must be 1 to {}", quoted_name(text), kMaxArchiveVersion));
  }
}

// The dict with tensors that `value` is or leads to. `seen`, by index: each dict is looked at once, so sharing and
// cycles cost nothing.
std::optional<PickleIndex> find_state_dict(const Pickle& pickle, const TensorReader& tensors, PickleIndex value,
                                           std::vector<bool>& seen, int depth = 0) {
  if (pickle[value].kind != PickleKind::kDict || seen[value] || depth == kMaxStateDictDepth) return std::nullopt;
  seen[value] = true;
  std::array<std::optional<PickleIndex>, kStateDictKeys.size()> nested;
  bool has_tensors = false;
  const std::vector<PickleIndex>& items = pickle[value].items();
  for (size_t i = 0; i < items.size(); i += 2) {
    has_tensors = has_tensors || tensors.is_tensor(items[i + 1]);
    for (size_t k = 0; k < kStateDictKeys.size(); ++k)
      if (pickle.text(items[i]) == kStateDictKeys[k]) nested[k] = items[i + 1];
  }
  for (const std::optional<PickleIndex>& candidate : nested)
    if (candidate)
      if (auto found = find_state_dict(pickle, tensors, *candidate, seen, depth + 1)) return found;
  return has_tensors ? std::optional(value) : std::nullopt;
}

std::string keys_text(const Pickle& pickle) {
  const PickleValue& root = pickle[pickle.root];
  if (root.kind != PickleKind::kDict) return "the top level is not a dict";
  std::string text = "the top-level dict has the keys";
  const std::vector<PickleIndex>& items = root.items();
  for (size_t i = 0; i < items.size() && i < 2 * kShownKeys; i += 2) {
    const std::optional<std::string_view> key = pickle.text(items[i]);
    text += (i == 0 ? " " : ", ") + (key ? quoted_name(*key) : "(not a text)");
  }
  return text + (items.size() > 2 * kShownKeys ? ", ..." : items.empty() ? " (none)" : "");
}

TensorMap read_state_dict(const Pickle& pickle, TensorReader& tensors, const std::string& path) {
  std::vector<bool> seen(pickle.values.size(), false);
  const std::optional<PickleIndex> state_dict = find_state_dict(pickle, tensors, pickle.root, seen);
  if (!state_dict) throw FormatError(path, "holds no state dict with tensors: " + keys_text(pickle));
  TensorMap result;
  const std::vector<PickleIndex>& items = pickle[*state_dict].items();
  for (size_t i = 0; i < items.size(); i += 2) {
    if (!tensors.is_tensor(items[i + 1])) continue;
    const std::optional<std::string_view> key = pickle.text(items[i]);
    if (!key) throw FormatError(path, "the state dict has a tensor whose name is not a text");
    if (!result.try_emplace(std::string(*key), tensors.read(items[i + 1], *key)).second)
      throw FormatError(path, "tensor " + quoted_name(*key) + " appears twice");
  }
  return result;
}

// Plain values of a pickle as JSON.
class ConfigReader {
 public:
  ConfigReader(const Pickle& pickle, std::string where) : pickle_(pickle), where_(std::move(where)) {}

  // Nothing for values that JSON does not have.
  std::optional<Json> convert(PickleIndex index, int depth = 0) {
    if (depth > kMaxJsonDepth) throw FormatError(where_, fmt::format("nested deeper than {}", kMaxJsonDepth));
    spend(1);
    const PickleValue& value = pickle_[index];
    switch (value.kind) {
      case PickleKind::kNone: return Json(nullptr);
      case PickleKind::kBool: return Json(value.integer() != 0);
      case PickleKind::kInt: return Json(value.integer());
      case PickleKind::kFloat: return Json(value.real());
      case PickleKind::kText: return Json(copied(value.text()));
      case PickleKind::kTuple:
      case PickleKind::kList: return convert_list(value.items(), depth);
      case PickleKind::kDict: return convert_dict(value.items(), depth);
      default: return std::nullopt;
    }
  }

 private:
  void spend(uint64_t cost) {
    if (cost > cost_left_) throw FormatError(where_, fmt::format("is larger than {} B", kMaxConfigCost));
    cost_left_ -= cost;
  }

  std::string copied(std::string_view text) {
    spend(text.size());
    return std::string(text);
  }

  Json convert_list(const std::vector<PickleIndex>& items, int depth) {
    Json list = Json::array();
    for (PickleIndex item : items)
      if (std::optional<Json> converted = convert(item, depth + 1)) list.push_back(std::move(*converted));
    return list;
  }

  Json convert_dict(const std::vector<PickleIndex>& items, int depth) {
    Json dict = Json::object();
    for (size_t i = 0; i < items.size(); i += 2) {
      spend(1);
      const std::optional<std::string_view> text = pickle_.text(items[i]);
      if (!text) continue;
      std::string key = copied(*text);
      if (std::optional<Json> converted = convert(items[i + 1], depth + 1)) dict[key] = std::move(*converted);
    }
    return dict;
  }

  const Pickle& pickle_;
  std::string where_;
  uint64_t cost_left_ = kMaxConfigCost;
};

std::optional<Json> read_config(const Pickle& pickle, const std::string& path) {
  const PickleValue& root = pickle[pickle.root];
  if (root.kind != PickleKind::kDict) return std::nullopt;
  for (std::string_view wanted : kConfigKeys)
    for (size_t i = 0; i < root.items().size(); i += 2) {
      const PickleIndex value = root.items()[i + 1];
      if (pickle.text(root.items()[i]) != wanted || pickle[value].kind != PickleKind::kDict) continue;
      std::string where = path + ": " + quoted_name(wanted);
      std::optional<Json> config = ConfigReader(pickle, where).convert(value);
      try {
        (void)canonical_json(*config);
      } catch (const Json::exception& error) {  // a text that is not UTF-8
        throw FormatError(where, error.what());
      }
      return config;
    }
  return std::nullopt;
}

}  // namespace

bool looks_like_legacy_torch(Bytes file) {
  constexpr size_t kTarMagicAt = 257;
  std::string_view text = as_text(file);
  bool pickle = text.size() >= 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5;
  return pickle || (text.size() > kTarMagicAt && text.substr(kTarMagicAt).starts_with("ustar"));
}

CheckpointContents read_torch_checkpoint(Bytes file, const std::string& path, CrcCheck check) {
  if (looks_like_legacy_torch(file))
    throw FormatError(path,
                      "is a bare pickle or a file of PyTorch before 1.6, only zip files are read: load it where it was "
                      "made and save model.state_dict() again with torch.save of PyTorch 1.6 or later");
  ZipArchive archive(file, path, check);
  const std::string prefix = find_prefix(archive, path);
  check_archive_marks(archive, prefix, path);
  const std::string pickle_name = prefix + std::string(kPickleName);
  const Pickle pickle =
      read_pickle(archive.read(pickle_name), path + ": " + quoted_name(pickle_name), kTorchPickleGlobals);
  TensorReader tensors(pickle, archive, prefix, path, file.size());
  CheckpointContents contents;
  contents.tensors = read_state_dict(pickle, tensors, path);
  contents.gathered = std::move(tensors).gathered();
  contents.config = read_config(pickle, path);
  return contents;
}

}  // namespace thimble
