// quantize_options.h: options that `quantize` and `sweep` share: methods, calibration, the parameters of method
// `slope`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "quantizer/console/file_roles.h"
#include "quantizer/pipeline/quantize_request.h"

namespace thimble {

// Matrices of fewer elements take more bytes for the steps of method `slope` than they could save.
constexpr int64_t kSlopeMinElements = 4096;

const std::vector<std::string>& method_names();  // as on the command line, in the order of Method
// One of them; other names are UsageErrors.
MethodKind parse_method(const std::string& name);
std::string method_name(MethodKind method);

// Decimal digits, or a UsageError that names the option.
int64_t parse_integer(const std::string& text, const std::string& option, int64_t low, int64_t high);

void add_calibration_options(CLI::App& command, QuantizeRequest& request);
// The checkpoint and the files of calibration.
void register_files(const QuantizeRequest& request, FileRoles& roles);
// --min-elements and --codec, where they are given.
struct EncodingOptions {
  std::optional<int64_t> min_elements;
  std::string codec;
  bool portable = false;
};
void add_encoding_options(CLI::App& command, EncodingOptions& encoding);
// Sets the method, and of the encoding what is given or else suits the method.
void choose_method(QuantizeRequest& request, MethodKind method, const EncodingOptions& encoding);

// Options that only one method has use for. A command line that names one beside other methods is refused.
class MethodOptions {
 public:
  // `option` changes what this method does and nothing else. Returns it.
  CLI::Option* add(CLI::Option* option, MethodKind method);

  // A UsageError for the first option on the command line that none of `chosen` has use for.
  void require_used(const std::vector<MethodKind>& chosen) const;

 private:
  std::vector<std::pair<const CLI::Option*, MethodKind>> entries_;
};

// The options of method slope and of its distillation; of method trace; of the work folder.
void add_slope_options(CLI::App& command, QuantizeRequest& request, MethodOptions& methods);
void add_trace_bits_option(CLI::App& command, std::string& bits, MethodOptions& methods);
void add_resume_options(CLI::App& command, std::string& work_folder, bool& keep_work);

// Once the checkpoint is open: reads --bits, and fills in what was not given, by the device, the methods that are to
// run, and the model of `spec`, which is unset for a family that does not run. UsageError for what does not go
// together.
void finish_options(QuantizeRequest& request, const std::vector<MethodKind>& methods, const std::string& bits,
                    const std::optional<Spec>& spec);

}  // namespace thimble
