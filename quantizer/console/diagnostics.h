// diagnostics.h: what the program says on standard error, and the standard streams it says it on.
// Diagnostics that cannot be written (a full disk, a closed descriptor, a reader that has gone) are dropped: a run must
// not fail for what it says about itself.
#pragma once

#include <string_view>

namespace thimble {

// Writes `text` as it is to standard error, as far as it goes. Never throws, leaves errno alone, raises no SIGPIPE.
void say(std::string_view text) noexcept;

// Gives a closed standard input, output or error a descriptor that takes no writes, before a file that is opened gets
// its number and with it what was meant for the user. First thing in main(). False when the system has none to give.
bool occupy_standard_streams() noexcept;

// What a run that can be resumed says when it is interrupted (SIGINT, SIGTERM), before it ends as that signal ends a
// program: while alive, either signal writes `line` to standard error first. A signal that the caller of the program
// had ignored stays ignored. One at a time. An empty line: nothing changes.
class InterruptNotice {
 public:
  explicit InterruptNotice(std::string_view line);
  ~InterruptNotice();
  InterruptNotice(const InterruptNotice&) = delete;
  InterruptNotice& operator=(const InterruptNotice&) = delete;

 private:
  bool is_set_;
};

}  // namespace thimble
