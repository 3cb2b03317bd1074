// commands.h: every command of the program, one function and one file each.
// A function adds its subcommand to the app and sets the action that runs when the user names it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "quantizer/console/console.h"
#include "quantizer/console/file_roles.h"
#include "quantizer/console/help_formatter.h"
#include "quantizer/console/option_values.h"
#include "runtime/device/device.h"
#include "runtime/device/ranks.h"

namespace thimble {

// The chosen command: set while the command line is parsed, run afterwards.
using Action = std::function<void(Console&)>;

struct CommandLine {
  Ranks& ranks;
  CLI::App app{"thimble fits a trained language model into a byte budget and proves in bits per byte what that cost",
               "thimble"};
  CommonOptions common = {};
  Action action = {};
  bool uses_all_ranks = false;  // set with the action; without it, rank 0 acts alone
};

void add_quantize_command(CommandLine& line);
void add_eval_command(CommandLine& line);
void add_sweep_command(CommandLine& line);
void add_budget_command(CommandLine& line);
void add_inspect_command(CommandLine& line);
void add_verify_command(CommandLine& line);
void add_export_command(CommandLine& line);
void add_loader_command(CommandLine& line);
void add_generate_command(CommandLine& line);
void add_tokenize_command(CommandLine& line);
void add_audit_command(CommandLine& line);
void add_numerics_command(CommandLine& line);
void add_doctor_command(CommandLine& line);

// A subcommand with the options that all share (--json, --quiet, --threads, --seed, --device, --numerics,
// --device-memory) and an example. Options that are added next are common ones, until option_defaults() says another
// group.
CLI::App* add_command(CommandLine& line, const std::string& name, const std::string& description,
                      const std::string& example);

// What runs when the user names the command: on rank 0 alone, or on all ranks.
void set_action(CommandLine& line, CLI::App& command, Action action);
void set_collective_action(CommandLine& line, CLI::App& command, Action action);

// The checkpoint that is to be quantized; --config of a command that opens checkpoints.
void add_checkpoint(CLI::App& command, std::string& path);
void add_config_option(CLI::App& command, std::string& path);

// --code FILE, once for each file, and --code-bytes N: what counts against a budget besides the artifact.
struct CodeOptions {
  std::vector<std::string> files;
  uint64_t extra_bytes = 0;
  void add_to(CLI::App& command);
  void register_files(FileRoles& roles) const;
  uint64_t total_bytes() const;
};

// What --device, --numerics and --device-memory name.
Device open_device(const CommonOptions& common);

// The same for all ranks: those on one machine take its CUDA devices in turn. Ranks of different arithmetic, whose
// results would depend on who computed what, are an Error.
Device open_device(const CommonOptions& common, Ranks& ranks);

// "cpu (avx512)", "2 ranks of cpu (avx512)".
std::string device_text(const Device& device, const Ranks& ranks);

}  // namespace thimble
