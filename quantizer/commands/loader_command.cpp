// loader_command.cpp: `thimble loader`: writes the smallest Python program that reads an artifact.
#include <fmt/format.h>

#include "packer/artifact.h"
#include "packer/codecs/codec.h"
#include "quantizer/checkpoints/loader_script.h"
#include "quantizer/commands/commands.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

constexpr const char *kNumpy = "numpy", *kTorch = "torch";

struct LoaderArguments {
  std::string artifact, output;
  std::string arrays = kNumpy;
};

void write_loader(const LoaderArguments& options, Console& console) {
  FileRoles roles;
  roles.model(options.artifact);
  roles.output("--output", options.output);
  roles.check();
  const MappedFile file(options.artifact);
  decode_artifact(file.bytes(), options.artifact);  // which the program does not check
  const std::string text = loader_script(file.bytes(), options.artifact,
                                         options.arrays == kTorch ? ArrayLibrary::kTorch : ArrayLibrary::kNumpy);
  write_file_atomically(options.output, text);
  const Bytes bytes = as_bytes_of(text);
  const size_t compressed = codec_of(CodecId::kBrotli).compress(bytes, {.columns = bytes.size()}).size();
  console.result(
      facts_text({{"artifact", bytes_text(file.bytes().size())},
                  {"loader", fmt::format("{} ({} with Brotli)", bytes_text(text.size()), bytes_text(compressed))},
                  {"total", bytes_text(file.bytes().size() + text.size())},
                  {"written", options.output}}),
      {{"artifact_bytes", file.bytes().size()},
       {"loader_bytes", text.size()},
       {"brotli_bytes", compressed},
       {"total_bytes", file.bytes().size() + text.size()},
       {"output", options.output}});
}

}  // namespace

void add_loader_command(CommandLine& line) {
  auto options = std::make_shared<LoaderArguments>();
  CLI::App* command = add_command(line, "loader", "Write the smallest Python program that reads an artifact",
                                  "thimble loader model.thmb -o load.py");
  command->add_option("artifact", options->artifact, "Artifact (.thmb)")->required();
  add_file(*command, "-o,--output", options->output, "File to write: load(\"model.thmb\") gives arrays by name")
      ->required();
  add_choice(*command, "--library", options->arrays, "What it decodes with: numpy, or PyTorch on a CUDA device",
             {kNumpy, kTorch})
      ->capture_default_str();
  set_action(line, *command, [options](Console& console) { write_loader(*options, console); });
}

}  // namespace thimble
