// work_folder.h: results of finished steps of quantize and sweep, one atomic file each, so that a killed run resumes.
// Every file's name carries the hash of all that its contents depend on; a stale file is simply never asked for.
// Results for which there is no room (NoRoomError) are not kept: the run goes on without them, and can say so.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gptq/statistics/fisher.h"
#include "runtime/base/json.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

class WorkFolder {
 public:
  // An empty path keeps nothing. The folder is created, not its parents: an IoError when that fails for another reason
  // than that there is no room.
  explicit WorkFolder(const std::string& path);
  // Deletes the folder when nothing is in it.
  ~WorkFolder();
  // Is anything kept? Else what is saved is dropped.
  bool keeps() const;
  // Is this the name of a file that a WorkFolder writes and remove() deletes?
  static bool is_own(std::string_view name);

  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  // nullopt when there is no such result, or the file is damaged (then it is computed again).
  std::optional<std::vector<Token>> load_tokens(uint64_t key) const;
  void save_tokens(uint64_t key, std::span<const Token> tokens) const;

  std::optional<CalibrationStatistics> load_statistics(uint64_t key) const;
  void save_statistics(uint64_t key, const CalibrationStatistics& statistics) const;

  // Any bytes: a piece of shared work (shared_work.h).
  std::optional<ByteVector> load_piece(uint64_t key) const;
  void save_piece(uint64_t key, Bytes piece) const;

  // A score of a sweep, as JSON (sweep_results.h).
  std::optional<Json> load_score(uint64_t key) const;
  void save_score(uint64_t key, const Json& record) const;

  // Where an artifact may lie while it is scored; nowhere when nothing is kept.
  std::optional<std::string> artifact_path(uint64_t key) const;

  // Deletes our files and what killed runs left of them; nothing else, since the folder may be the user's.
  void remove() const;

  // Writes what all the others were made for, atomically. On a full disk it goes before them: they are deleted when
  // they are on that disk and large enough to make room.
  void write_artifact(const std::string& output, Bytes artifact) const;

  // What of all this the user should know: that results were not kept, or deleted. Empty where nothing.
  std::string note() const;

 private:
  std::string file(const std::string& kind, uint64_t key) const;
  std::vector<std::filesystem::directory_entry> own_files() const;
  bool make_room(const std::string& output, uint64_t bytes) const;  // false: nothing was deleted
  // Any thread. Once there was no room, nothing more is tried: what is left of the disk is for the outputs.
  void keep(const std::function<void()>& save) const;
  void set_note(const std::string& note) const;

  std::string path_;
  mutable std::mutex mutex_;
  mutable std::string note_;
};

}  // namespace thimble
