// work_folder.cpp: the files behind work_folder.h: checksummed safetensors.
#include "quantizer/methods/work_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include "quantizer/checkpoints/hessian_file.h"
#include "quantizer/checkpoints/safetensors.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

constexpr const char* kTokens = "tokens";
constexpr const char* kHessians = "hessians";
constexpr const char* kPiece = "piece";
constexpr const char* kScore = "score";
constexpr const char* kArtifact = "artifact";
constexpr const char* kExtension = ".safetensors";
constexpr const char* kArtifactExtension = ".thmb";
constexpr const char* kInfo = "thimble";  // the metadata that holds JSON

// A damaged result file is as good as none; anything else that goes wrong is the caller's.
template <typename Load>
auto load_or_nothing(const std::string& path, Load load) -> std::optional<decltype(load())> {
  if (!file_exists(path)) return std::nullopt;
  try {
    return load();
  } catch (const FormatError&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  } catch (const std::out_of_range&) {  // whole, but another kind of result under this name
    return std::nullopt;
  }
}

// The disk that a folder ("" is the working folder) is on; 0 where there is no such folder.
dev_t device_of(const std::filesystem::path& folder) {
  struct stat info {};
  return ::stat(folder.empty() ? "." : folder.c_str(), &info) == 0 ? info.st_dev : 0;
}

// The tensors of a file that this program wrote: the checksum stands for everything in it.
CheckpointContents read_own_file(const MappedFile& file) {
  CheckpointContents contents = read_safetensors(file.bytes(), file.path());
  if (!verify_checksum(contents, file.path())) throw FormatError(file.path(), "has no checksum");
  return contents;
}

template <typename T>
std::vector<T> numbers_of(Bytes bytes, const std::string& path) {
  ByteCursor cursor(bytes, path);
  std::vector<T> numbers(bytes.size() / sizeof(T));
  for (T& number : numbers) number = cursor.read<T>("number");
  return numbers;
}

template <typename T>
ByteVector bytes_of(std::span<const T> numbers) {
  ByteVector bytes;
  bytes.reserve(numbers.size_bytes());
  for (T number : numbers) append_little_endian(bytes, number);
  return bytes;
}

}  // namespace

// kind-0123456789abcdef.safetensors, an artifact with its own extension, or the temporary of one.
bool WorkFolder::is_own(std::string_view name) {
  constexpr size_t kHashDigits = 16;
  for (const char* kind : {kTokens, kHessians, kPiece, kScore, kArtifact}) {
    const std::string prefix = std::string(kind) + "-";
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    const char* extension = kind == kArtifact ? kArtifactExtension : kExtension;
    if (rest.find_first_not_of("0123456789abcdef") == kHashDigits && rest.substr(kHashDigits).starts_with(extension))
      return true;
  }
  return false;
}

WorkFolder::WorkFolder(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  try {
    make_folder(path_);
  } catch (const NoRoomError& error) {
    set_note(std::string("nothing is kept to resume from: ") + error.what());
    path_.clear();
  }
}

WorkFolder::~WorkFolder() {
  if (!path_.empty()) ::rmdir(path_.c_str());  // fails, as it should, when something is in it
}

std::string WorkFolder::note() const {
  std::lock_guard lock(mutex_);
  return note_;
}

void WorkFolder::set_note(const std::string& note) const {
  std::lock_guard lock(mutex_);
  note_ = note;
}

bool WorkFolder::keeps() const { return !path_.empty() && note().empty(); }

void WorkFolder::keep(const std::function<void()>& save) const {
  if (!keeps()) return;
  try {
    save();
  } catch (const NoRoomError& error) {
    set_note(std::string("not everything is kept to resume from: ") + error.what());
  }
}

std::string WorkFolder::file(const std::string& kind, uint64_t key) const {
  return path_ + "/" + kind + "-" + hex64(key) + kExtension;
}

std::optional<std::vector<Token>> WorkFolder::load_tokens(uint64_t key) const {
  if (path_.empty()) return std::nullopt;
  std::string path = file(kTokens, key);
  return load_or_nothing(path, [&] {
    MappedFile mapped(path);
    const CheckpointContents contents = read_own_file(mapped);
    const TensorView& tokens = contents.tensors.at("tokens");
    if (tokens.dtype != DType::kI32) throw FormatError(path, "tokens of another width");
    return numbers_of<Token>(tokens.bytes, path);
  });
}

void WorkFolder::save_tokens(uint64_t key, std::span<const Token> tokens) const {
  keep([&] {
    ByteVector bytes = bytes_of<Token>(tokens);
    TensorMap tensors = {{"tokens", {DType::kI32, {static_cast<int64_t>(tokens.size())}, bytes}}};
    write_checksummed_safetensors(file(kTokens, key), tensors, {});
  });
}

std::optional<CalibrationStatistics> WorkFolder::load_statistics(uint64_t key) const {
  if (path_.empty()) return std::nullopt;
  std::string path = file(kHessians, key);
  return load_or_nothing(path, [&] { return read_hessian_file(path); });
}

void WorkFolder::save_statistics(uint64_t key, const CalibrationStatistics& statistics) const {
  keep([&] { write_hessian_file(file(kHessians, key), statistics); });
}

std::optional<ByteVector> WorkFolder::load_piece(uint64_t key) const {
  if (path_.empty()) return std::nullopt;
  const std::string path = file(kPiece, key);
  return load_or_nothing(path, [&] {
    MappedFile mapped(path);
    const CheckpointContents contents = read_own_file(mapped);
    if (contents.metadata.at(kInfo) != hex64(key)) throw FormatError(path, "holds another piece than its name says");
    const Bytes piece = contents.tensors.at(kPiece).bytes;
    return ByteVector(piece.begin(), piece.end());
  });
}

void WorkFolder::save_piece(uint64_t key, Bytes piece) const {
  const TensorMap tensors = {{kPiece, {DType::kU8, {static_cast<int64_t>(piece.size())}, piece}}};
  keep([&] { write_checksummed_safetensors(file(kPiece, key), tensors, {{kInfo, hex64(key)}}); });
}

std::vector<std::filesystem::directory_entry> WorkFolder::own_files() const {
  std::vector<std::filesystem::directory_entry> files;
  std::error_code ignored;  // what cannot be looked at cannot be removed either
  if (path_.empty()) return files;
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored))
    if (is_own(entry.path().filename().string())) files.push_back(entry);
  return files;
}

std::optional<Json> WorkFolder::load_score(uint64_t key) const {
  if (path_.empty()) return std::nullopt;
  std::string path = file(kScore, key);
  return load_or_nothing(path, [&] {
    MappedFile mapped(path);
    const Json info = parse_json(as_bytes_of(read_own_file(mapped).metadata.at(kInfo)), path);
    if (info.at("key") != hex64(key)) throw FormatError(path, "holds another score than its name says");
    return info.at("record");
  });
}

void WorkFolder::save_score(uint64_t key, const Json& record) const {
  const Json info = {{"key", hex64(key)}, {"record", record}};
  // Messages may name files in bytes that are not UTF-8.
  const std::string text = info.dump(-1, ' ', false, Json::error_handler_t::replace);
  keep([&] { write_checksummed_safetensors(file(kScore, key), {}, {{kInfo, text}}); });
}

std::optional<std::string> WorkFolder::artifact_path(uint64_t key) const {
  if (path_.empty()) return std::nullopt;
  return path_ + "/" + kArtifact + "-" + hex64(key) + kArtifactExtension;
}

void WorkFolder::remove() const {
  std::error_code ignored;  // the artifact is written; what cannot be cleaned up is not an error
  for (const auto& entry : own_files()) std::filesystem::remove(entry.path(), ignored);
}

void WorkFolder::write_artifact(const std::string& output, Bytes artifact) const {
  try {
    write_file_atomically(output, artifact);
  } catch (const NoRoomError& error) {
    if (!error.is_disk_full || !make_room(output, artifact.size())) throw;
    write_file_atomically(output, artifact);
  }
}

bool WorkFolder::make_room(const std::string& output, uint64_t bytes) const {
  if (path_.empty() || device_of(path_) != device_of(std::filesystem::path(output_target(output)).parent_path()))
    return false;
  uint64_t freed = 0;
  for (const auto& entry : own_files()) {
    std::error_code gone;
    if (const uintmax_t size = entry.file_size(gone); !gone) freed += size;
  }
  if (freed < bytes) return false;
  remove();
  set_note("the work folder '" + path_ + "' was emptied to make room for '" + output + "'");
  return true;
}

}  // namespace thimble
