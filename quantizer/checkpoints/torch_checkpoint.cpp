// torch_checkpoint.cpp: finds the archive's parts and the state dict inside its pickle.
#include "quantizer/checkpoints/torch_checkpoint.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "quantizer/checkpoints/pickle.h"
#include "quantizer/checkpoints/torch_globals.h"
#include "quantizer/checkpoints/torch_tensors.h"
#include "quantizer/console/quoted_name.h"

namespace thimble {
namespace {

constexpr std::array<std::string_view, 8> kStateDictKeys = {"model",     "state_dict", "model_state_dict", "module",
                                                            "model_ema", "ema",        "ema_state_dict",   "weights"};
constexpr std::array<std::string_view, 4> kConfigKeys = {"config", "model_config", "model_args", "args"};
constexpr std::string_view kPickleName = "/data.pkl";
constexpr int kMaxArchiveVersion = 10;
constexpr size_t kShownKeys = 20;
constexpr int kMaxStateDictDepth = 16;
// Sharing makes a walk over a pickle longer than the pickle: a config may cost this much (values and text bytes).
constexpr uint64_t kMaxConfigCost = uint64_t{1} << 20;

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

void check_archive_marks(const ZipArchive& archive, const std::string& prefix, const std::string& path,
                         CrcCheck check) {
  if (std::string name = prefix + "/byteorder"; archive.contains(name)) {
    std::string_view order = as_text(archive.read(name, check));
    if (order != "little") throw FormatError(path, "byteorder is " + quoted_name(order) + ", must be 'little'");
  }
  if (std::string name = prefix + "/version"; archive.contains(name)) {
    std::string_view text = as_text(archive.read(name, check));
    int version = 0;
    std::string_view digits = text.substr(0, text.find('\n'));
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), version);
    if (error != std::errc() || end != digits.data() + digits.size() || version < 1 || version > kMaxArchiveVersion)
      throw FormatError(path,
                        fmt::format("archive version {}, must be 1 to {}", quoted_name(text), kMaxArchiveVersion));
  }
}

class StateDictFinder {
 public:
  StateDictFinder(const Pickle& pickle, const TorchTensors& tensors)
      : pickle_(pickle), tensors_(tensors), seen_(pickle.values.size(), false) {}

  // The dict with tensors that `value` is or leads to; each dict is looked at once, so sharing and cycles cost nothing.
  std::optional<PickleIndex> find(PickleIndex value, int depth = 0) {
    if (pickle_[value].kind != PickleKind::kDict || seen_[value] || depth == kMaxStateDictDepth) return std::nullopt;
    seen_[value] = true;
    std::array<std::optional<PickleIndex>, kStateDictKeys.size()> nested;
    bool has_tensors = false;
    const std::vector<PickleIndex>& items = pickle_[value].items();
    for (size_t i = 0; i < items.size(); i += 2) {
      has_tensors = has_tensors || tensors_.is_tensor(items[i + 1]);
      if (pickle_[items[i]].kind != PickleKind::kText) continue;
      for (size_t k = 0; k < kStateDictKeys.size(); ++k)
        if (pickle_[items[i]].text() == kStateDictKeys[k]) nested[k] = items[i + 1];
    }
    for (const std::optional<PickleIndex>& candidate : nested)
      if (candidate)
        if (std::optional<PickleIndex> found = find(*candidate, depth + 1)) return found;
    return has_tensors ? std::optional(value) : std::nullopt;
  }

 private:
  const Pickle& pickle_;
  const TorchTensors& tensors_;
  std::vector<bool> seen_;
};

std::string keys_text(const Pickle& pickle) {
  const PickleValue& root = pickle[pickle.root];
  if (root.kind != PickleKind::kDict) return "the top level is not a dict";
  std::string text = "the top-level dict has the keys";
  const std::vector<PickleIndex>& items = root.items();
  for (size_t i = 0; i < items.size() && i < 2 * kShownKeys; i += 2) {
    const PickleValue& key = pickle[items[i]];
    text += (i == 0 ? " " : ", ") + (key.kind == PickleKind::kText ? quoted_name(key.text()) : "(not a text)");
  }
  return text + (items.size() > 2 * kShownKeys ? ", ..." : items.empty() ? " (none)" : "");
}

TensorMap read_state_dict(const Pickle& pickle, TorchTensors& tensors, const std::string& path) {
  std::optional<PickleIndex> state_dict = StateDictFinder(pickle, tensors).find(pickle.root);
  if (!state_dict) throw FormatError(path, "holds no state dict with tensors: " + keys_text(pickle));
  TensorMap result;
  const std::vector<PickleIndex>& items = pickle[*state_dict].items();
  for (size_t i = 0; i < items.size(); i += 2) {
    if (!tensors.is_tensor(items[i + 1])) continue;
    const PickleValue& key = pickle[items[i]];
    if (key.kind != PickleKind::kText) throw FormatError(path, "the state dict has a tensor whose name is not a text");
    if (!result.try_emplace(std::string(key.text()), tensors.read(items[i + 1], key.text())).second)
      throw FormatError(path, "tensor " + quoted_name(key.text()) + " appears twice");
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
      case PickleKind::kText: return Json(read_text(value));
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

  std::string read_text(const PickleValue& value) {
    spend(value.text().size());
    return std::string(value.text());
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
      if (pickle_[items[i]].kind != PickleKind::kText) continue;
      std::string key = read_text(pickle_[items[i]]);
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
      const PickleValue& key = pickle[root.items()[i]];
      PickleIndex value = root.items()[i + 1];
      if (key.kind != PickleKind::kText || key.text() != wanted || pickle[value].kind != PickleKind::kDict) continue;
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

TorchContents read_torch_checkpoint(Bytes file, const std::string& path, CrcCheck check) {
  if (looks_like_legacy_torch(file))
    throw FormatError(path,
                      "is a bare pickle or a file of PyTorch before 1.6, only zip files are read: load it where it was "
                      "made and save model.state_dict() again with torch.save of PyTorch 1.6 or later");
  ZipArchive archive(file, path);
  std::string prefix = find_prefix(archive, path);
  check_archive_marks(archive, prefix, path, check);
  std::string pickle_name = prefix + std::string(kPickleName);
  Pickle pickle =
      read_pickle(archive.read(pickle_name, check), path + ": " + quoted_name(pickle_name), kTorchPickleGlobals);
  TorchTensors tensors(pickle, archive, prefix, path, check, file.size());
  TorchContents contents;
  contents.tensors = read_state_dict(pickle, tensors, path);
  contents.gathered = std::move(tensors.gathered());
  contents.config = read_config(pickle, path);
  return contents;
}

}  // namespace thimble
