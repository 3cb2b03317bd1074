// commands.cpp: what the commands share.
#include "quantizer/commands/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "runtime/base/checked.h"
#include "runtime/base/file.h"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

constexpr uint64_t kMaxThreads = 4096;

// With the limits of the command line, for a command that uses it until it ends.
Device limited(Device device, const CommonOptions& common) {
  if (common.device_memory > 0) device.memory_limit_bytes = common.device_memory;
  for (int ordinal : device.ordinals) keep_freed_memory({ordinal, device.memory_limit_bytes});
  if (common.memory > 0) device.host_memory_bytes = std::min(device.host_memory_bytes, common.memory);
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
  add_count(*command, "--threads", line.common.threads, "Threads to use; 0 for all of the machine", 0, kMaxThreads)
      ->capture_default_str();
  add_count(*command, "--seed", line.common.seed, "Seed of everything random; equal seeds give equal results", 0,
            std::numeric_limits<uint64_t>::max())
      ->capture_default_str();
  auto add_name = [&](const char* option, std::string& value, const std::string& text, auto is_allowed,
                      const std::string& allowed) {
    auto check = [=](std::string& given) { return is_allowed(given) ? "" : "'" + given + "', allowed are " + allowed; };
    command->add_option(option, value, text)
        ->check(CLI::Validator(check, "", ""))
        ->type_name("NAME")
        ->capture_default_str();
  };
  add_name("--device", line.common.device, std::string("Where models run: ") + kDeviceTexts, is_device_text,
           kDeviceTexts);
  add_name("--numerics", line.common.numerics,
           std::string("Arithmetic of models: ") + kNumericsTexts + "; auto is bf16 on CUDA devices, else fp32",
           is_numerics_text, kNumericsTexts);
  add_bytes(*command, "--device-memory", line.common.device_memory,
            "Most memory of each CUDA device to use; batches shrink to fit; 0 for what is free")
      ->capture_default_str();
  add_bytes(*command, "--memory", line.common.memory,
            "Most memory of the host to plan with; statistics come in groups that fit; 0 for what the machine, or the "
            "control group, has")
      ->capture_default_str();
  command->option_defaults()->group(kCommonGroup);
  return command;
}

void set_action(CommandLine& line, CLI::App& command, Action action) {
  command.callback([&line, action = std::move(action)] { line.action = action; });
}

void set_collective_action(CommandLine& line, CLI::App& command, Action action) {
  command.callback([&line, action = std::move(action)] {
    line.action = action;
    line.uses_all_ranks = true;
  });
}

void add_config_option(CLI::App& command, std::string& path) {
  add_file(command, "--config", path, "Config of a checkpoint (JSON); default: inside it, or config.json beside it");
}

void add_checkpoint(CLI::App& command, std::string& path) {
  command
      .add_option("checkpoint", path,
                  "Trained model (.safetensors, .pt, .gguf, .bin of llm.c, or a folder with config.json)")
      ->required();
}

void CodeOptions::add_to(CLI::App& command) {
  repeatable(command.add_option("--code", files, "File whose size counts against the budget; once for each file"))
      ->check(file_name())
      ->type_name("FILE");
  add_bytes(command, "--code-bytes", extra_bytes, "Further bytes that count against the budget")->capture_default_str();
}

void CodeOptions::register_files(FileRoles& roles) const {
  for (const std::string& file : files) roles.input("the --code file", file);
}

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
