// output_check.cpp: compares files, not names: links lead to the same file.
#include "quantizer/output_check.h"

#include <filesystem>

#include "runtime/atomic_file.h"
#include "runtime/error.h"

namespace thimble {

void check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  for (const std::string& output : outputs) {
    if (output.empty()) continue;
    for (const std::string& input : inputs) {
      std::error_code missing;
      if (std::filesystem::equivalent(output, input, missing))
        throw UsageError("the output '" + output + "' would replace the input '" + input + "'");
    }
    require_writable(output);
  }
}

}  // namespace thimble
