// export_command.cpp: `thimble export`: an artifact's weights as safetensors, under the checkpoint's own names; those
// of an artifact or a checkpoint as a folder of Hugging Face or a GGUF file; an artifact itself in such a folder.
#include <fmt/format.h>

#include "quantizer/checkpoints/gguf_writer.h"
#include "quantizer/checkpoints/hub_folder.h"
#include "quantizer/checkpoints/weight_source.h"
#include "quantizer/commands/commands.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "quantizer/formats/safetensors.h"
#include "quantizer/reports/model_card.h"
#include "runtime/base/count_text.h"
#include "runtime/base/json.h"
#include "runtime/codes/nvfp4_scale_layout.h"
#include "runtime/families/model_weights.h"

namespace thimble {
namespace {

constexpr const char* kDequantized = "dequantized";
constexpr const char* kNvfp4 = "nvfp4";

constexpr const char *kToSafetensors = "safetensors", *kToHub = "hf", *kToArtifactFolder = "hf-thimble",
                     *kToGguf = "gguf";

struct ExportArguments {
  std::string model, output, to = kToSafetensors, layout = kDequantized;
  std::string dtype;              // empty: that of the format
  std::string tokenizer, config;  // of other formats than safetensors
  std::string report;             // what quantize --json printed, for the model card
  uint64_t shard_bytes = 5'000'000'000;
};

// What is written: tensors, the file's metadata, and what the result says of them.
struct Export {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
  Json result;
};

// Tensors in NVFP4 as block-scaled matrix products read them: codes as they are, scales in atoms of 128 rows x 4
// blocks. The others dequantized. Matrices stay single, out of banks.
Export nvfp4_export(const QuantizedModel& quantized, DType dtype, const std::string& path) {
  std::map<std::string, Tensor> tensors;
  Json shapes = Json::object();
  QuantizedModel others{quantized.config_json, quantized.provenance_json, quantized.banked, {}};
  for (const QuantizedTensor& tensor : quantized.tensors) {
    const auto* blocked = std::get_if<Nvfp4Codes>(&tensor.data);
    if (!blocked) {
      others.tensors.push_back(tensor);
      continue;
    }
    const int64_t rows = tensor.shape.at(0), columns = rows == 0 ? 0 : element_count(tensor.shape) / rows;
    const std::vector<uint8_t> scales = arrange_scales(blocked->block_scales, rows, nvfp4_blocks(columns));
    auto bytes_of = [](std::span<const uint8_t> values) {
      Bytes bytes = std::as_bytes(values);
      return ByteVector(bytes.begin(), bytes.end());
    };
    tensors[tensor.name] = {DType::kU8, {rows, nvfp4_row_bytes(columns)}, bytes_of(blocked->codes)};
    tensors[tensor.name + "_scale"] = {DType::kU8, {static_cast<int64_t>(scales.size())}, bytes_of(scales)};
    tensors[tensor.name + "_scale_2"] = {DType::kF32, {}, from_float32(DType::kF32, {&blocked->tensor_scale, 1})};
    shapes[tensor.name] = tensor.shape;
  }
  if (shapes.empty())
    throw UsageError(path + ": no tensor is in NVFP4, which --layout nvfp4 is for (quantize --method nvfp4)");
  tensors.merge(dequantized_tensors(others, dtype, path));
  return {std::move(tensors),
          {{"config", quantized.config_json}, {"nvfp4_shapes", canonical_json(shapes)}},
          {{"banked", false}, {"nvfp4_tensors", shapes.size()}}};
}

Export dequantized_export(const QuantizedModel& quantized, DType dtype, const std::string& path) {
  const Json config = parse_json(as_bytes_of(quantized.config_json), path);
  return {checkpoint_tensors(quantized, dtype, path),
          {{"format", "pt"}, {"config", canonical_json(config)}},
          {{"banked", quantized.banked}}};
}

Json export_safetensors(const ExportArguments& options, DType dtype) {
  const QuantizedModel quantized = load_artifact(options.model);
  Export made = (options.layout == kNvfp4 ? nvfp4_export : dequantized_export)(quantized, dtype, options.model);
  TensorMap views;
  for (const auto& [name, tensor] : made.tensors) views[name] = tensor.view();
  write_safetensors(options.output, views, made.metadata);
  made.result["tensors"] = made.tensors.size();
  return made.result;
}

Json export_hub_folder(const ExportArguments& options, DType dtype) {
  const WeightSource source(options.model, options.config);
  const HubFolderReport report =
      write_hub_folder(options.output, source, {dtype, options.shard_bytes, options.tokenizer});
  return {{"tensors", report.tensors},
          {"shards", report.shards},
          {"tensor_bytes", report.tensor_bytes},
          {"tokenizer_files", report.tokenizer_files}};
}

Json export_artifact_folder(const ExportArguments& options, DType dtype) {
  if (!is_artifact(options.model))
    throw UsageError(options.model + " is no artifact, which --to hf-thimble is for (--to hf takes checkpoints too)");
  const WeightSource source(options.model, options.config);
  const ArtifactSummary summary = describe_artifact(MappedFile(options.model).bytes(), options.model);
  const std::string card = model_card(options.output, summary, options.report);
  const HubFolderReport report = write_artifact_folder(options.output, source, {dtype, 0, options.tokenizer},
                                                       summary.format_version, {{"README.md", card}});
  return {
      {"tensors", report.tensors}, {"artifact_bytes", summary.file_bytes}, {"tokenizer_files", report.tokenizer_files}};
}

// The tokenizer of --tokenizer, a file or a folder, or else of the model's folder or GGUF file.
std::string gguf_tokenizer(const ExportArguments& options, const WeightSource& source) {
  const std::string& from = options.tokenizer.empty() ? source.folder() : options.tokenizer;
  if (from.empty() && holds_gguf_tokenizer(source.path())) return source.path();
  if (!from.empty()) {
    const auto files = tokenizer_files_at(from);
    for (const char* kind : {"tokenizer.json", "tokenizer.model"})
      for (const auto& [path, name] : files)
        if (name == kind || path == from) return path;
  }
  throw UsageError(
      fmt::format("--to gguf needs --tokenizer, a tokenizer.json, a tokenizer.model or a folder with one{}",
                  from.empty() ? "" : fmt::format(": '{}' has none", from)));
}

Json export_gguf(const ExportArguments& options, const std::string& type) {
  const WeightSource source(options.model, options.config);
  const GgufReport report = write_gguf(options.output, source, *gguf_blocks(type), gguf_tokenizer(options, source));
  return {{"tensors", report.tensors}, {"tensor_bytes", report.tensor_bytes}, {"in_f16_instead", report.narrower}};
}

Json run_export(const ExportArguments& options) {
  const bool is_default = options.to == kToSafetensors;
  const std::string dtype = !options.dtype.empty() ? options.dtype : is_default ? "F32" : "BF16";
  Json result = options.to == kToGguf             ? export_gguf(options, dtype)
                : options.to == kToHub            ? export_hub_folder(options, dtype_from_name(dtype, "--dtype"))
                : options.to == kToArtifactFolder ? export_artifact_folder(options, dtype_from_name(dtype, "--dtype"))
                                                  : export_safetensors(options, dtype_from_name(dtype, "--dtype"));
  result.update({{"output", options.output}, {"to", options.to}, {"dtype", dtype}});
  return result;
}

std::string to_text(const Json& result) {
  std::string text = fmt::format("wrote {} {} {} to {}", counted(result.at("tensors").get<size_t>(), "tensor"),
                                 result.at("to") == kToArtifactFolder ? "in an artifact, to be loaded as" : "as",
                                 result.at("dtype").get<std::string>(), result.at("output").get<std::string>());
  if (const size_t shards = result.value("shards", size_t{1}); shards > 1) text += fmt::format(" in {} shards", shards);
  if (result.contains("tokenizer_files") && result.at("tokenizer_files").empty())
    text += ", without a tokenizer (--tokenizer names one)";
  if (const size_t instead = result.value("in_f16_instead", size_t{0}); instead > 0)
    text += fmt::format(", {} of them in F16, whose rows are no multiples of 32", instead);
  return text + "\n";
}

void register_files(const ExportArguments& options, FileRoles& roles) {
  roles.model(options.model, options.config);
  if (options.to != kToSafetensors)
    for (const std::string& file : files_of_folder(options.model)) roles.input("the model's", file);
  if (!options.tokenizer.empty())
    for (const auto& [file, name] : tokenizer_files_at(options.tokenizer)) roles.input("the --tokenizer", file);
  roles.input("the --report", options.report);
  if (options.to == kToHub || options.to == kToArtifactFolder)
    roles.output_folder("--output", options.output);
  else
    roles.output("--output", options.output);
}

// ExportArguments that the format has no use for.
void check_options(const ExportArguments& options, const CLI::App& command) {
  auto refuse = [&](const char* option, const char* owner) {
    if (command.get_option(option)->count() > 0)
      throw UsageError(fmt::format("{} is for --to {}: it has no effect with {}", option, owner, options.to));
  };
  if (options.to != kToSafetensors) refuse("--layout", kToSafetensors);
  if (options.to != kToHub) refuse("--shard-size", kToHub);
  if (options.to != kToArtifactFolder) refuse("--report", kToArtifactFolder);
  if (options.to == kToSafetensors) refuse("--tokenizer", "hf, hf-thimble and gguf");
  if (options.to == kToSafetensors || options.to == kToArtifactFolder) refuse("--config", "hf and gguf");
  if (options.dtype == "Q8_0" && options.to != kToGguf) throw UsageError("--dtype Q8_0 is for --to gguf");
}

}  // namespace

void add_export_command(CommandLine& line) {
  auto options = std::make_shared<ExportArguments>();
  CLI::App* command = add_command(line, "export", "Write a model's weights in formats that other programs read",
                                  "thimble export model.thmb -o dequantized.safetensors\n"
                                  "  thimble export model.thmb --to hf -o folder --tokenizer checkpoint/\n"
                                  "  thimble export model.thmb --to hf-thimble -o folder --tokenizer checkpoint/\n"
                                  "  thimble export model.thmb --to gguf -o model.gguf --tokenizer checkpoint/");
  command->add_option("model", options->model, "Artifact (.thmb); with --to hf or gguf also a checkpoint")->required();
  add_file(*command, "-o,--output", options->output,
           "File to write; with --to hf and hf-thimble a folder, new or empty")
      ->required();
  add_choice(
      *command, "--to", options->to,
      "safetensors: one file; hf: a folder that transformers loads; hf-thimble: the same with the artifact itself, "
      "for where the Python package thimble is installed; gguf: a file that llama.cpp runs",
      {kToSafetensors, kToHub, kToArtifactFolder, kToGguf})
      ->capture_default_str();
  add_choice(
      *command, "--dtype", options->dtype,
      "Element type; default F32, which is exact, of hf, hf-thimble (when it is loaded) and gguf BF16; Q8_0 for gguf "
      "alone",
      {"F32", "F16", "BF16", "Q8_0"})
      ->type_name("TYPE");
  add_file(
      *command, "--tokenizer", options->tokenizer,
      "Tokenizer to add with --to hf, hf-thimble or gguf, a file or a folder; default: that of the model's folder");
  add_bytes(*command, "--shard-size", options->shard_bytes, "Most bytes of tensors in one file of --to hf")
      ->default_str("5GB");
  add_config_option(*command, options->config);
  add_file(*command, "--report", options->report,
           "What quantize --json printed: the model card of --to hf-thimble says bytes and BPB before and after")
      ->type_name("JSON");
  add_choice(*command, "--layout", options->layout,
             "nvfp4: tensors in NVFP4 as codes and scales for CUTLASS and cuBLASLt, see docs/guides/export_nvfp4.md",
             {kDequantized, kNvfp4})
      ->capture_default_str();
  set_action(line, *command, [options, command](Console& console) {
    check_options(*options, *command);
    FileRoles roles;
    register_files(*options, roles);
    roles.check();
    const Json result = run_export(*options);
    console.result(to_text(result), result);
  });
}

}  // namespace thimble
