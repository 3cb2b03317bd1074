// budget_command.cpp: `thimble budget`: does an artifact with its code fit a limit? Exit 0 fits, 3 does not.
#include <fmt/format.h>

#include "packer/artifact.h"
#include "quantizer/checkpoints/loader_script.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/commands/commands.h"
#include "runtime/base/checked.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

struct BudgetArguments {
  std::string artifact;
  uint64_t limit = 0;
  CodeOptions code;
  bool with_loader = false;
};

Json to_json(const BudgetReport& report) {
  return {{"artifact_bytes", report.artifact_bytes},
          {"code_bytes", report.code_bytes},
          {"total_bytes", report.total_bytes},
          {"limit_bytes", report.limit_bytes},
          {"fits", report.fits}};
}

std::string to_text(const BudgetReport& report) {
  uint64_t difference = report.fits ? report.limit_bytes - report.total_bytes : report.total_bytes - report.limit_bytes;
  return facts_text({{"artifact", bytes_text(report.artifact_bytes)},
                     {"code", bytes_text(report.code_bytes)},
                     {"total", bytes_text(report.total_bytes)},
                     {"limit", bytes_text(report.limit_bytes)},
                     {report.fits ? "left" : "over by", bytes_text(difference)}});
}

}  // namespace

void add_budget_command(CommandLine& line) {
  auto options = std::make_shared<BudgetArguments>();
  CLI::App* command = add_command(line, "budget", "Check an artifact and its code against a byte limit",
                                  "thimble budget model.thmb --limit 16000000 --code train_gpt.py");
  command->add_option("artifact", options->artifact, "Artifact (.thmb)")->required();
  add_bytes(*command, "--limit", options->limit, "Most bytes that artifact and code may take: 16000000, 16MB, 1.5e6")
      ->required();
  options->code.add_to(*command);
  command->add_flag("--with-loader", options->with_loader, "Count what thimble loader writes as code too");
  set_action(line, *command, [options](Console& console) {
    load_artifact(options->artifact);  // a damaged file fits no budget
    uint64_t code_bytes = options->code.total_bytes();
    if (options->with_loader) {
      const std::string loader = loader_script(MappedFile(options->artifact).bytes(), options->artifact);
      code_bytes = add_or_throw(code_bytes, loader.size(), "--code-bytes");
    }
    const BudgetReport report = check_budget(file_size_bytes(options->artifact), code_bytes, options->limit);
    console.result(to_text(report), to_json(report));
    if (!report.fits)
      throw CheckError(fmt::format("{}: {} with code, the limit is {}", options->artifact,
                                   bytes_text(report.total_bytes), bytes_text(report.limit_bytes)));
  });
}

}  // namespace thimble
