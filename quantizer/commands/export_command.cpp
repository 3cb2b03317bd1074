// export_command.cpp: `thimble export`: an artifact's weights as safetensors, under the checkpoint's own names.
#include <fmt/format.h>

#include <cmath>

#include "quantizer/checkpoints/model_source.h"
#include "quantizer/checkpoints/safetensors.h"
#include "quantizer/commands/commands.h"
#include "runtime/base/count_text.h"
#include "runtime/base/json.h"
#include "runtime/codes/nvfp4_scale_layout.h"

namespace thimble {
namespace {

// Dequantized tensors, owned, by the name they have in the file.
using OwnedTensors = std::map<std::string, Tensor>;

// A finite weight that `dtype` cannot hold would be written as infinity: a FormatError instead.
ByteVector converted(const QuantizedTensor& tensor, DType dtype, const std::string& path) {
  std::vector<float> values = dequantize(tensor);
  ByteVector bytes = from_float32(dtype, values);
  std::vector<float> kept = to_float32(dtype, bytes);
  for (size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i]) && !std::isfinite(kept[i]))
      throw FormatError(path, fmt::format("tensor '{}' holds {}, beyond the range of {}; export it as F32", tensor.name,
                                          values[i], dtype_name(dtype)));
  return bytes;
}

OwnedTensors dequantized_tensors(const QuantizedModel& quantized, DType dtype, const std::string& path) {
  OwnedTensors tensors;
  for (const QuantizedTensor& tensor : quantized.tensors) {
    const auto* raw = std::get_if<RawTensor>(&tensor.data);
    // Integer tensors stay as they are.
    if (raw && !is_floating(raw->dtype))
      tensors[tensor.name] = {raw->dtype, tensor.shape, raw->bytes};
    else
      tensors[tensor.name] = {dtype, tensor.shape, converted(tensor, dtype, path)};
  }
  return tensors;
}

constexpr const char* kDequantized = "dequantized";
constexpr const char* kNvfp4 = "nvfp4";

struct Options {
  std::string artifact, output, dtype = "F32", layout = kDequantized;
};

// What is written: tensors, the file's metadata, and what the result says of them.
struct Export {
  OwnedTensors tensors;
  std::map<std::string, std::string> metadata;
  Json result;
};

// Tensors in NVFP4 as block-scaled matrix products read them: codes as they are, scales in atoms of 128 rows x 4
// blocks. The others dequantized. Matrices stay single, out of banks.
Export nvfp4_export(const QuantizedModel& quantized, DType dtype, const std::string& path) {
  OwnedTensors tensors;
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
  OwnedTensors tensors = dequantized_tensors(quantized, dtype, path);
  const Json config = parse_json(as_bytes_of(quantized.config_json), path);
  // Of a family that runs, the tensors are checked before they are laid out as in its checkpoints.
  if (find_family(config, {})) {
    const Spec spec = quantized_spec(quantized, path);
    tensors = spec.family->to_file(spec, std::move(tensors), quantized.banked);
  } else if (quantized.banked) {
    throw FormatError(path, cannot_be_run(config));
  }
  return {std::move(tensors), {{"format", "pt"}, {"config", canonical_json(config)}}, {{"banked", quantized.banked}}};
}

Json run_export(const Options& options) {
  const DType dtype = dtype_from_name(options.dtype, "--dtype");
  const QuantizedModel quantized = load_artifact(options.artifact);
  Export made = (options.layout == kNvfp4 ? nvfp4_export : dequantized_export)(quantized, dtype, options.artifact);
  TensorMap views;
  for (const auto& [name, tensor] : made.tensors) views[name] = tensor.view();
  write_safetensors(options.output, views, made.metadata);
  made.result.update({{"output", options.output}, {"tensors", made.tensors.size()}, {"dtype", options.dtype}});
  return made.result;
}

}  // namespace

void add_export_command(CommandLine& line) {
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(line, "export", "Write an artifact's dequantized weights as safetensors",
                                  "thimble export model.thmb -o dequantized.safetensors");
  command->add_option("artifact", options->artifact, "Artifact (.thmb)")->required();
  add_file(*command, "-o,--output", options->output, "File to write (.safetensors)")->required();
  add_choice(*command, "--dtype", options->dtype, "Element type; F32 is exact", {"F32", "F16", "BF16"})
      ->type_name("TYPE")
      ->capture_default_str();
  add_choice(*command, "--layout", options->layout,
             "nvfp4: tensors in NVFP4 as codes and scales for CUTLASS and cuBLASLt, see docs/guides/export_nvfp4.md",
             {kDequantized, kNvfp4})
      ->capture_default_str();
  set_action(line, *command, [options](Console& console) {
    FileRoles roles;
    roles.model(options->artifact);
    roles.output("--output", options->output);
    roles.check();
    Json result = run_export(*options);
    console.result(fmt::format("wrote {} as {} to {}\n", counted(result.at("tensors").get<size_t>(), "tensor"),
                               options->dtype, options->output),
                   result);
  });
}

}  // namespace thimble
