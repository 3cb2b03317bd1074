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

// "5,6" -> low and high bits; "5" -> both the same.
void parse_bits(const std::string& text, TracePlanOptions& plan);

void add_calibration_options(CLI::App& command, QuantizeRequest& request);
// The checkpoint and the files of calibration.
void register_files(const QuantizeRequest& request, FileRoles& roles);
// Fills in defaults. `has_slope`: among the methods to run, which distils on tokens beside a file of Hessians.
// `spec`, unset for a family that does not run, says how long sequences may be. UsageError.
void finish_calibration_options(QuantizeRequest& request, bool has_slope, const std::optional<Spec>& spec);

// --min-elements and --codec, where they are given.
struct EncodingOptions {
  std::optional<int64_t> min_elements;
  std::string codec;
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

// The effort that the device suits, where none was asked for: fast on the CPU. And the counts that follow from it.
// Before finish_calibration_options().
void finish_effort(QuantizeRequest& request);

// The default depends on whether there is calibration text. UsageError.
void finish_cross_term(QuantizeRequest& request, const std::optional<Spec>& spec);

void check_slope_options(const SlopeOptions& slope);  // UsageError

}  // namespace thimble
