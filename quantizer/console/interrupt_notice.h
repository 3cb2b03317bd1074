// interrupt_notice.h: what a run that can be resumed says when it is interrupted (SIGINT, SIGTERM), before it ends as
// that signal ends a program.
#pragma once

#include <string_view>

namespace thimble {

// While alive, either signal writes `line` to standard error first. A signal that the caller of the program had ignored
// stays ignored. One at a time. An empty line: nothing changes.
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
