// method_options.h: options that only some methods have use for. Each is declared once, with its methods; a command
// line that names one beside other methods is refused.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "quantizer/pipeline/quantize_job.h"

namespace thimble {

class MethodOptions {
 public:
  // `option` changes what these methods do and nothing else. Returns it.
  CLI::Option* add(CLI::Option* option, std::vector<MethodKind> methods);

  // A UsageError for the first option on the command line that none of `chosen` has use for.
  void require_used(const std::vector<MethodKind>& chosen) const;

 private:
  struct Entry {
    const CLI::Option* option;
    std::vector<MethodKind> methods;
  };
  std::vector<Entry> entries_;
};

}  // namespace thimble
