// file_kind.h: what a file is, by its first bytes, so that a message about a file that is not what was asked for can
// say what it is instead. Never decides what is read: readers check their own formats.
#pragma once

#include <string>

#include "runtime/base/byte_cursor.h"

namespace thimble {

// What a file was to be.
enum class FileUse { kCheckpoint, kCheckpointIndex, kShard, kArtifact, kTokenShard, kTokenizer, kHessians, kConfig };

constexpr size_t kFileKindBytes = 4096;  // no more of a file is looked at

// Do the first bytes show a kind of file that this use takes?
bool is_kind_for(FileUse use, Bytes file);

// "is a GGUF file of llama.cpp, not a checkpoint (...)", with what to do about it where that is known; "is not a
// checkpoint (...)" for a file of unknown kind.
std::string wrong_file_text(Bytes file, FileUse use);

// Throws FormatError(path, wrong_file_text()) for a file that its first bytes show to be of another kind than `use`
// takes. Files of unknown kind pass: their reader knows better what is wrong with them.
void refuse_other_kinds(Bytes file, FileUse use, const std::string& path);

}  // namespace thimble
