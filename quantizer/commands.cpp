// commands.cpp: what the commands share.
#include "quantizer/commands.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "runtime/checked.h"
#include "runtime/file.h"

namespace thimble {
namespace {

CLI::Validator one_of(bool (*is_allowed)(std::string_view), const std::string& allowed) {
  auto check = [=](std::string& text) { return is_allowed(text) ? "" : "'" + text + "', allowed are " + allowed; };
  return CLI::Validator(check, "", "");
}

Device limited(Device device, const CommonOptions& common) {
  if (common.device_memory > 0) device.memory_limit_bytes = common.device_memory;
  return device;
}

}  // namespace

CLI::Validator whole_number(uint64_t high) {
  auto check = [high](std::string& text) -> std::string {
    uint64_t value = 0;
    const char* end = text.data() + text.size();
    auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || value > high)
      return "'" + text + "', allowed is an integer from 0 to " + std::to_string(high);
    text = std::to_string(value);
    return "";
  };
  return CLI::Validator(check, "", "");
}

CLI::Validator finite_number(double low, double high) {
  auto check = [low, high](std::string& text) -> std::string {
    double value = 0;
    const char* end = text.data() + text.size();
    auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && std::isfinite(value) && value >= low && value <= high) return "";
    return fmt::format("'{}', allowed is a number from {} to {}", text, low, high);
  };
  return CLI::Validator(check, "", "");
}

CLI::Validator file_name() {
  auto check = [](std::string& text) { return text.empty() ? "'', allowed is the name of a file or folder" : ""; };
  return CLI::Validator(check, "", "");
}

CLI::App* add_command(CommandLine& line, const std::string& name, const std::string& description,
                      const std::string& example) {
  CLI::App* command = line.app.add_subcommand(name, description);
  command->footer("Example:\n  " + example);
  command->add_flag("--json", line.common.json, "Print the result as one JSON document");
  command->add_flag("--quiet", line.common.quiet, "Print nothing but errors (and JSON, with --json)");
  command->add_option("--threads", line.common.threads, "Threads to use; 0 for all of the machine")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_option("--seed", line.common.seed, "Seed of everything random; equal seeds give equal results")
      ->transform(whole_number(std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  command->add_option("--device", line.common.device, std::string("Where models run: ") + kDeviceTexts)
      ->check(one_of(is_device_text, kDeviceTexts))
      ->capture_default_str();
  command
      ->add_option("--numerics", line.common.numerics,
                   std::string("Arithmetic of models: ") + kNumericsTexts + "; auto is bf16 on CUDA devices, else fp32")
      ->check(one_of(is_numerics_text, kNumericsTexts))
      ->capture_default_str();
  command
      ->add_option("--device-memory", line.common.device_memory,
                   "Most bytes of each CUDA device to use (decimal); batches shrink to fit; 0 for what is free")
      ->transform(whole_number(kMaxOptionBytes))
      ->capture_default_str();
  return command;
}

void CodeOptions::add_to(CLI::App& command) {
  command.add_option("--code", files, "Files whose size counts against the budget (decimal bytes)")
      ->check(file_name())
      ->type_name("FILE...");
  command.add_option("--code-bytes", extra_bytes, "Further bytes that count against the budget")
      ->transform(whole_number(kMaxOptionBytes))
      ->capture_default_str();
}

void CodeOptions::register_files(FileRoles& roles) const { roles.inputs("the --code file", files); }

uint64_t CodeOptions::total_bytes() const {
  uint64_t total = extra_bytes;
  for (const std::string& file : files) total = add_or_throw(total, file_size_bytes(file), file);
  return total;
}

Device open_device(const CommonOptions& common) { return limited(open_device(common.device, common.numerics), common); }

Device open_device(const CommonOptions& common, Ranks& ranks) {
  Device device = limited(open_device(common.device, common.numerics, ranks.local_rank()), common);
  ranks.require_equal(device.arithmetic(), "the arithmetic");
  return device;
}

std::string device_text(const Device& device, const Ranks& ranks) {
  return ranks.size() == 1 ? device.name() : fmt::format("{} ranks of {}", ranks.size(), device.name());
}

}  // namespace thimble
