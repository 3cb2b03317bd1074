// commands.cpp: what the commands share.
#include "quantizer/commands/commands.h"

#include <fmt/format.h>

#include <limits>

#include "runtime/base/checked.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

constexpr uint64_t kMaxThreads = 4096;

CLI::Validator allowed_text(bool (*is_allowed)(std::string_view), const std::string& allowed) {
  auto check = [=](std::string& text) { return is_allowed(text) ? "" : "'" + text + "', allowed are " + allowed; };
  return CLI::Validator(check, "", "");
}

Device limited(Device device, const CommonOptions& common) {
  if (common.device_memory > 0) device.memory_limit_bytes = common.device_memory;
  return device;
}

}  // namespace

CLI::App* add_command(CommandLine& line, const std::string& name, const std::string& description,
                      const std::string& example) {
  CLI::App* command = line.app.add_subcommand(name, description);
  command->group("Commands");
  command->footer("Example:\n  " + example);
  for (const char* help : {"--help", "--help-all"}) command->get_option(help)->group(kGeneralGroup);
  command->option_defaults()->group(kGeneralGroup);
  command->add_flag("--json", line.common.json, "Print the result as one JSON document");
  command->add_flag("--quiet", line.common.quiet, "Print nothing but errors (and JSON, with --json)");
  command->option_defaults()->group(kMachineGroup);
  command->add_option("--threads", line.common.threads, "Threads to use; 0 for all of the machine")
      ->transform(whole_number(0, kMaxThreads))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--seed", line.common.seed, "Seed of everything random; equal seeds give equal results")
      ->transform(whole_number(0, std::numeric_limits<uint64_t>::max()))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--device", line.common.device, std::string("Where models run: ") + kDeviceTexts)
      ->check(allowed_text(is_device_text, kDeviceTexts))
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("--numerics", line.common.numerics,
                   std::string("Arithmetic of models: ") + kNumericsTexts + "; auto is bf16 on CUDA devices, else fp32")
      ->check(allowed_text(is_numerics_text, kNumericsTexts))
      ->type_name("NAME")
      ->capture_default_str();
  command
      ->add_option("--device-memory", line.common.device_memory,
                   "Most memory of each CUDA device to use; batches shrink to fit; 0 for what is free")
      ->transform(byte_size())
      ->type_name("BYTES")
      ->capture_default_str();
  command->option_defaults()->group(kCommonGroup);
  return command;
}

CLI::Option* add_config_option(CLI::App& command, std::string& path) {
  return command
      .add_option("--config", path, "Config of a checkpoint (JSON); default: inside it, or config.json beside it")
      ->check(file_name())
      ->type_name("FILE");
}

void CodeOptions::add_to(CLI::App& command) {
  repeatable(command.add_option("--code", files, "File whose size counts against the budget; once for each file"))
      ->check(file_name())
      ->type_name("FILE");
  command.add_option("--code-bytes", extra_bytes, "Further bytes that count against the budget")
      ->transform(byte_size())
      ->type_name("BYTES")
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
