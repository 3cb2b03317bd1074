// work_folder.h: pieces of finished work of quantize and sweep, one atomic file each, so that a killed run resumes.
// Every file's name carries the hash of all that its contents depend on; a stale file is simply never asked for.
// Pieces for which there is no room (NoRoomError) are not kept: the run goes on without them, and can say so.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/byte_cursor.h"
#include "runtime/base/file.h"

namespace thimble {

enum class WorkKind { kTokens, kHessians, kSums, kSolution, kSection, kSearch, kLearning, kScore };

struct PieceName {
  WorkKind kind;
  uint64_t key;  // hash of all that the contents depend on
  bool operator==(const PieceName&) const = default;
};

class WorkFolder {
 public:
  // Called after each piece that has been kept, with how many there were. Tests end a run there.
  using AfterPiece = std::function<void(size_t count)>;

  // An empty path keeps nothing. The folder is created, not its parents: an IoError when that fails for another reason
  // than that there is no room.
  explicit WorkFolder(const std::string& path, AfterPiece after_piece = {});
  // Deletes the folder when nothing is in it.
  ~WorkFolder();
  // Is anything kept? Else what is saved is dropped.
  bool keeps() const;
  // Is this the name of a file that a WorkFolder writes and remove() deletes?
  static bool is_own(std::string_view name);

  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  // Both from any thread. nullopt when there is no such piece, or the file is damaged or another's: then it is to be
  // computed again, and note() says so.
  std::optional<ByteVector> load(const PieceName& piece) const;
  // The same without a copy: what is mapped stays when the file is removed.
  std::optional<HeldBytes> map(const PieceName& piece) const;
  // Replaces an older piece of that name. False: not kept.
  bool save(const PieceName& piece, Bytes contents) const;

  // How many times pieces were loaded or saved.
  size_t uses() const;
  // Deletes the pieces loaded or saved since there were so many uses, but for those of this name and for packed
  // sections, which are small, and which later artifacts share.
  void forget_since(size_t uses, const PieceName& but) const;

  // Where an artifact may lie while it is scored; nowhere when nothing is kept.
  std::optional<std::string> artifact_path(uint64_t key) const;

  // Deletes our files and what killed runs left of them; nothing else, since the folder may be the user's.
  void remove() const;

  // Writes what all the others were made for, atomically. On a full disk it goes before them: they are deleted when
  // they are on that disk and large enough to make room.
  void write_artifact(const std::string& output, Bytes artifact) const;

  // What of all this the user should know: that pieces were not kept, damaged, or deleted. Empty where nothing.
  std::string note() const;

 private:
  std::string file(const PieceName& piece) const;
  std::vector<std::filesystem::directory_entry> own_files() const;
  bool make_room(const std::string& output, uint64_t bytes) const;  // false: nothing was deleted
  void set_note(const std::string& note) const;

  std::string path_;
  AfterPiece after_piece_;
  mutable std::mutex mutex_;
  mutable std::string note_;  // once there is one nothing more is kept: what is left of the disk is for the outputs
  mutable std::string damaged_;
  mutable std::vector<PieceName> used_;
  mutable size_t saved_ = 0;
};

}  // namespace thimble
