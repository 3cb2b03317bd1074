// stage_memory.h: the most memory that this process had resident during each of a command's stages.
// Linux counts the peak of a process, and counts it anew after a write to /proc/self/clear_refs. Where that is not
// allowed, peaks are those since the process began.
#pragma once

#include <cstdint>
#include <vector>

namespace thimble {

// For one thread, and one such object at a time: another would count anew in between and see less.
class StageMemory {
 public:
  void begin();                                      // a stage, perhaps inside another
  uint64_t end();                                    // the innermost: its peak in bytes
  uint64_t peak_bytes();                             // of the process
  bool counts_anew() const { return counts_anew_; }  // false once that failed

 private:
  void look();  // at the peak since the last look

  std::vector<uint64_t> open_;  // peaks of the stages that have not ended
  uint64_t process_ = 0;
  bool counts_anew_ = true;
};

}  // namespace thimble
