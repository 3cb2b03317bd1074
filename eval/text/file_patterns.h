// file_patterns.h: several files named at once.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace thimble {

// The files that the patterns (glob(3), or plain names) stand for: pattern after pattern, each one's matches in
// byte order of their names. `kind` says in errors what they are ("token shard"). IoError when a pattern matches
// nothing, UsageError when a file is named twice.
std::vector<std::string> expand_patterns(std::span<const std::string> patterns, const std::string& kind);

}  // namespace thimble
