// work_folder.cpp: the files behind work_folder.h: checksummed safetensors.
#include "quantizer/methods/work_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "quantizer/console/version.h"
#include "quantizer/formats/safetensors.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

// By WorkKind.
constexpr std::array kKinds = {"tokens", "hessians", "sums", "solution", "section", "search", "learning", "score"};
constexpr const char* kArtifact = "artifact";
constexpr const char* kExtension = ".safetensors";
constexpr const char* kArtifactExtension = ".thmb";
constexpr const char* kPiece = "piece";    // the only tensor
constexpr const char* kMaker = "thimble";  // the metadata that holds who made it, and its name

// The disk that a folder ("" is the working folder) is on; 0 where there is no such folder.
dev_t device_of(const std::filesystem::path& folder) {
  struct stat info {};
  return ::stat(folder.empty() ? "." : folder.c_str(), &info) == 0 ? info.st_dev : 0;
}

std::string stem_of(const PieceName& piece) {
  return std::string(kKinds.at(static_cast<size_t>(piece.kind))) + "-" + hex64(piece.key);
}

std::string maker_of(const PieceName& piece) { return std::string(kVersion) + " " + stem_of(piece); }

}  // namespace

// kind-0123456789abcdef.safetensors, an artifact with its own extension, or the temporary of one.
bool WorkFolder::is_own(std::string_view name) {
  constexpr size_t kHashDigits = 16;
  auto is_of = [&](std::string_view kind, std::string_view extension) {
    if (!name.starts_with(kind) || !name.substr(kind.size()).starts_with("-")) return false;
    const std::string_view rest = name.substr(kind.size() + 1);
    return rest.find_first_not_of("0123456789abcdef") == kHashDigits && rest.substr(kHashDigits).starts_with(extension);
  };
  return std::ranges::any_of(kKinds, [&](const char* kind) { return is_of(kind, kExtension); }) ||
         is_of(kArtifact, kArtifactExtension);
}

WorkFolder::WorkFolder(const std::string& path, AfterPiece after_piece)
    : path_(path), after_piece_(std::move(after_piece)) {
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
  return note_.empty() || damaged_.empty() ? note_ + damaged_ : damaged_ + "; " + note_;
}

void WorkFolder::set_note(const std::string& note) const {
  std::lock_guard lock(mutex_);
  note_ = note;
}

bool WorkFolder::keeps() const {
  std::lock_guard lock(mutex_);
  return !path_.empty() && note_.empty();
}

std::string WorkFolder::file(const PieceName& piece) const { return path_ + "/" + stem_of(piece) + kExtension; }

std::optional<ByteVector> WorkFolder::load(const PieceName& piece) const {
  const std::optional<HeldBytes> mapped = map(piece);
  if (!mapped) return std::nullopt;
  return ByteVector(mapped->bytes.begin(), mapped->bytes.end());
}

std::optional<HeldBytes> WorkFolder::map(const PieceName& piece) const {
  if (path_.empty() || !file_exists(file(piece))) return std::nullopt;
  const std::string path = file(piece);
  try {
    const MappedFile mapped(path);
    const CheckpointContents contents = read_safetensors(mapped.bytes(), path);
    const auto maker = contents.metadata.find(kMaker);
    const auto found = contents.tensors.find(kPiece);
    if (!verify_checksum(contents, path) || maker == contents.metadata.end() || maker->second != maker_of(piece) ||
        found == contents.tensors.end())
      throw FormatError(path, "is not the piece that its name says");
    std::lock_guard lock(mutex_);
    used_.push_back(piece);
    return HeldBytes{found->second.bytes, mapped.owner()};
  } catch (const FormatError& error) {
    std::lock_guard lock(mutex_);
    damaged_ = std::string("computed again what was kept in a damaged file: ") + error.what();
    return std::nullopt;
  }
}

bool WorkFolder::save(const PieceName& piece, Bytes contents) const {
  if (!keeps()) return false;
  const TensorMap tensors = {{kPiece, {DType::kU8, {static_cast<int64_t>(contents.size())}, contents}}};
  try {
    write_checksummed_safetensors(file(piece), tensors, {{kMaker, maker_of(piece)}});
  } catch (const NoRoomError& error) {
    set_note(std::string("not everything is kept to resume from: ") + error.what());
    return false;
  }
  size_t count = 0;
  {
    std::lock_guard lock(mutex_);
    used_.push_back(piece);
    count = ++saved_;
  }
  if (after_piece_) after_piece_(count);
  return true;
}

size_t WorkFolder::uses() const {
  std::lock_guard lock(mutex_);
  return used_.size();
}

void WorkFolder::forget_since(size_t uses, const PieceName& but) const {
  std::lock_guard lock(mutex_);
  std::error_code ignored;  // what cannot be removed takes room, no more
  for (size_t i = uses; i < used_.size(); ++i)
    if (used_[i] != but && used_[i].kind != WorkKind::kSection) std::filesystem::remove(file(used_[i]), ignored);
  used_.resize(std::min(uses, used_.size()), but);
}

std::vector<std::filesystem::directory_entry> WorkFolder::own_files() const {
  std::vector<std::filesystem::directory_entry> files;
  std::error_code ignored;  // what cannot be looked at cannot be removed either
  if (path_.empty()) return files;
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored))
    if (is_own(entry.path().filename().string())) files.push_back(entry);
  return files;
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
