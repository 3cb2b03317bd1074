// file_roles.cpp: identities of files behind file_roles.h.
#include "quantizer/console/file_roles.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>

#include "runtime/base/atomic_file.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

constexpr const char* kSiblingConfig = "config.json";

// Where the file really lies, or would: without links, as far as they lead to something.
std::filesystem::path place_of(std::filesystem::path path) {
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  std::error_code unresolved;
  // Absolute first: of a name in the working folder that is not there yet, nothing would be resolved.
  const std::filesystem::path whole = std::filesystem::absolute(path, unresolved);
  const std::filesystem::path canonical = std::filesystem::weakly_canonical(whole, unresolved);
  return unresolved ? whole.lexically_normal() : canonical;
}

// Equal for two paths exactly when they lead to one file, or would once it is there.
std::string identity(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return fmt::format("{}:{}", info.st_dev, info.st_ino);
  return place_of(path).string();
}

}  // namespace

void FileRoles::input(const std::string& role, const std::string& path) {
  if (!path.empty()) inputs_.push_back({role, path});
}

void FileRoles::model(const std::string& path, const std::string& config_path) {
  input("the model", path);
  input("the --config", config_path);
  std::error_code unreadable;
  if (std::filesystem::is_directory(path, unreadable)) return;
  const std::string sibling = (std::filesystem::path(path).parent_path() / kSiblingConfig).string();
  if (file_exists(sibling)) input("the config beside the model", sibling);
}

void FileRoles::output(const std::string& role, const std::string& path) {
  if (!path.empty()) outputs_.push_back({role, path});
}

void FileRoles::output_folder(const std::string& role, const std::string& path) {
  outputs_.push_back({role, path, true});
}

void FileRoles::work_folder(const std::string& path, std::function<bool(std::string_view)> is_own) {
  work_folder_ = path;
  is_own_ = std::move(is_own);
}

void FileRoles::check_work_folder(const File& file) const {
  const std::string folder = identity(work_folder_);
  if (identity(file.path) == folder)
    throw UsageError(
        fmt::format("the work folder '{}' would lie where {} '{}' is", work_folder_, file.role, file.path));
  const std::filesystem::path place = place_of(file.path);
  if (identity(place.parent_path()) == folder && is_own_(place.filename().string()))
    throw UsageError(
        fmt::format("{} '{}' is named like a file of the work folder '{}', which are removed when they are used up",
                    file.role, file.path, work_folder_));
}

void FileRoles::check() const {
  std::vector<std::pair<const File*, std::string>> taken;  // with their identities
  for (const File& input : inputs_) taken.emplace_back(&input, identity(input.path));
  for (const File& output : outputs_) {
    const std::string target = identity(output.is_folder ? output.path : output_target(output.path));
    for (const auto& [other, place] : taken)
      if (place == target)
        throw UsageError(
            fmt::format("{} '{}' would replace {} '{}'", output.role, output.path, other->role, other->path));
    taken.emplace_back(&output, target);
  }
  if (!work_folder_.empty())
    for (const std::vector<File>* files : {&inputs_, &outputs_})
      for (const File& file : *files) check_work_folder(file);
  for (const File& output : outputs_) (output.is_folder ? require_writable_folder : require_writable)(output.path);
}

}  // namespace thimble
