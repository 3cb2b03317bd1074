// progress.h: how long-running steps report that they advance. The terminal bar lives in quantizer/.
#pragma once

#include <cstdint>
#include <string_view>

namespace thimble {

// Thread-safe. begin() opens a stage of `total` units, advance() adds finished units, end() closes it.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void begin(std::string_view stage, int64_t total, std::string_view unit) = 0;
  virtual void advance(int64_t units) = 0;
  virtual void end() = 0;
};

class SilentProgress final : public Progress {
 public:
  void begin(std::string_view, int64_t, std::string_view) override {}
  void advance(int64_t) override {}
  void end() override {}
};

}  // namespace thimble
