// stage_times.h: seconds, and the most memory that this process had resident, during each of a command's stages.
// Linux counts the peak of a process, and counts it anew after a write to /proc/self/clear_refs. Where that is not
// allowed, peaks are those since the process began. After a long stage the memory that it has freed goes back to the
// system.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/json.h"

namespace thimble {

// For one thread, and one such object at a time: another would count anew in between and see less.
class StageTimes {
 public:
  struct Stage {
    std::string name;
    double seconds = 0;
    uint64_t peak_bytes = 0;  // most resident memory of the process during it, see has_stage_peaks()
  };

  // A stage, perhaps inside another. Repeated ones add up.
  template <typename Body>
  auto time(const std::string& stage, Body body) {
    struct Stop {
      StageTimes& times;
      std::string stage;
      std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
      ~Stop() { times.end(stage, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()); }
    };
    look();
    open_.push_back(0);
    Stop stop{*this, stage};
    return body();
  }
  const std::vector<Stage>& stages() const { return stages_; }  // in the order of their first ends
  // seconds and stage_peak_memory_bytes by stage
  Json to_json() const;
  // Of the process so far.
  uint64_t peak_memory_bytes();
  // False where the system cannot count anew: then a stage's peak is the process's from its beginning on.
  bool has_stage_peaks() const { return counts_anew_; }

 private:
  void end(const std::string& stage, double seconds);
  void look();  // at the peak since the last look

  std::vector<Stage> stages_;
  std::vector<uint64_t> open_;  // peaks of the stages that have not ended
  uint64_t process_peak_ = 0;
  bool counts_anew_ = true;
};

}  // namespace thimble
