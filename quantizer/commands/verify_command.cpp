// verify_command.cpp: `thimble verify`: checksums, decoding and canonical re-encoding of an artifact.
#include "packer/artifact.h"

#include "quantizer/commands/commands.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"
#include "runtime/base/file_kind.h"

namespace thimble {
namespace {

Json to_json(const VerifyReport& report, const std::string& path) {
  return {{"path", path},
          {"checksums", report.container_ok},
          {"decodes", report.decodes},
          {"canonical", report.canonical},
          {"identical", report.identical},
          {"recompressed_differently", report.recompressed_differently},
          {"problem", report.problem}};
}

std::string to_text(const VerifyReport& report) {
  auto verdict = [](bool passed) { return passed ? std::string("ok") : std::string("FAILED"); };
  std::string again = report.identical   ? "the same file, byte for byte"
                      : report.canonical ? counted(report.recompressed_differently.size(), "section") +
                                               " compressed differently (another library version?); same contents"
                                         : "FAILED";
  return facts_text({{"checksums", verdict(report.container_ok)},
                     {"decodes", verdict(report.decodes)},
                     {"canonical", verdict(report.canonical)},
                     {"encoded again", again}});
}

}  // namespace

void add_verify_command(CommandLine& line) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      add_command(line, "verify", "Prove that an artifact is undamaged, decodes, and encodes again the same",
                  "thimble verify model.thmb");
  command->add_option("artifact", *path, "Artifact (.thmb)")->required();
  set_action(line, *command, [path](Console& console) {
    const MappedFile file(*path);
    refuse_other_kinds(file.bytes(), FileUse::kArtifact, *path);  // nothing to verify in it
    VerifyReport report = verify_artifact(file.bytes(), *path, console.progress());
    console.result(to_text(report), to_json(report, *path));
    // A damaged file is bad input; the message names what is wrong with it.
    if (!report.ok())
      throw Error(ExitCode::kBadInput, report.problem.empty() ? *path + ": not canonical" : report.problem);
  });
}

}  // namespace thimble
