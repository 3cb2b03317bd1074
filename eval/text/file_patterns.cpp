// file_patterns.cpp: see file_patterns.h.
#include "eval/text/file_patterns.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

struct GlobResult {
  glob_t matches{};
  ~GlobResult() { globfree(&matches); }
};

std::vector<std::string> files_matching(const std::string& pattern, const std::string& kind) {
  if (file_exists(pattern)) return {pattern};  // also a name that holds '[' or '*'
  GlobResult result;
  int status = ::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &result.matches);
  if (status == GLOB_NOMATCH) throw IoError(pattern, "no " + kind + " has this name or matches this pattern", ENOENT);
  if (status != 0) throw IoError(pattern, "cannot search for " + kind + "s", status == GLOB_NOSPACE ? ENOMEM : errno);
  std::vector<std::string> files(result.matches.gl_pathv, result.matches.gl_pathv + result.matches.gl_pathc);
  std::ranges::sort(files);  // byte order: glob's own sorting follows the locale
  return files;
}

}  // namespace

std::vector<std::string> expand_patterns(std::span<const std::string> patterns, const std::string& kind) {
  std::vector<std::string> files;
  std::set<std::filesystem::path> seen;
  for (const std::string& pattern : patterns) {
    for (const std::string& file : files_matching(pattern, kind)) {
      std::error_code unresolved;
      std::filesystem::path canonical = std::filesystem::weakly_canonical(file, unresolved);
      if (!seen.insert(unresolved ? std::filesystem::path(file) : canonical).second)
        throw UsageError(kind + " " + file + " is named twice, and would count twice");
      files.push_back(file);
    }
  }
  return files;
}

}  // namespace thimble
