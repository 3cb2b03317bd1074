// work_folder.cpp: the files behind work_folder.h, in the formats that the program reads anyway.
#include "quantizer/work_folder.h"

#include <filesystem>

#include "eval/token_shard.h"
#include "quantizer/hessian_file.h"
#include "quantizer/safetensors.h"
#include "runtime/atomic_file.h"
#include "runtime/file.h"
#include "runtime/hash.h"

namespace thimble {
namespace {

// A damaged result file is as good as none; anything else that goes wrong is the caller's.
template <typename Load>
auto load_or_nothing(const std::string& path, Load load) -> std::optional<decltype(load())> {
  if (!file_exists(path)) return std::nullopt;
  try {
    return load();
  } catch (const FormatError&) {
    return std::nullopt;
  }
}

Json report_json(const GptqReport& report) {
  return {{"clip_fraction", report.clip_fraction},
          {"weight_mse", report.weight_mse},
          {"weighted_loss", report.weighted_loss},
          {"damping", report.damping},
          {"dead_columns", report.dead_columns}};
}

GptqReport report_from(const Json& json) {
  return {json.at("clip_fraction"), json.at("weight_mse"), json.at("weighted_loss"), json.at("damping"),
          json.at("dead_columns").get<std::vector<int64_t>>()};
}

}  // namespace

WorkFolder::WorkFolder(const std::string& path) : path_(path) {
  if (!path_.empty()) make_folder(path_);
}

std::string WorkFolder::file(const std::string& kind, uint64_t key, const std::string& extension) const {
  return path_ + "/" + kind + "-" + hex64(key) + extension;
}

std::optional<std::vector<uint16_t>> WorkFolder::load_tokens(uint64_t key) const {
  if (path_.empty()) return std::nullopt;
  std::string path = file("tokens", key, ".bin");
  return load_or_nothing(path, [&] { return parse_shard(MappedFile(path).bytes(), path); });
}

void WorkFolder::save_tokens(uint64_t key, std::span<const uint16_t> tokens) const {
  if (!path_.empty()) write_shard(file("tokens", key, ".bin"), tokens);
}

std::optional<HessianSet> WorkFolder::load_hessians(uint64_t key) const {
  if (path_.empty()) return std::nullopt;
  std::string path = file("hessians", key, ".safetensors");
  return load_or_nothing(path, [&] { return read_hessian_file(path); });
}

void WorkFolder::save_hessians(uint64_t key, const HessianSet& hessians) const {
  if (!path_.empty()) write_hessian_file(file("hessians", key, ".safetensors"), hessians);
}

std::optional<SolvedTensor> WorkFolder::load_solution(uint64_t key, const std::string& name, const Shape& shape) const {
  if (path_.empty()) return std::nullopt;
  std::string path = file("solved", key, ".safetensors");
  return load_or_nothing(path, [&]() -> SolvedTensor {
    MappedFile mapped(path);
    SafetensorsContents contents = read_safetensors(mapped.bytes(), path);
    auto tensor = [&](const char* key_name, DType dtype, int64_t count) {
      auto found = contents.tensors.find(key_name);
      if (found == contents.tensors.end() || found->second.dtype != dtype ||
          element_count(found->second.shape) != count)
        throw FormatError(path, "not a solved layer of this shape");
      return found->second.bytes;
    };
    Json info = parse_json(as_bytes_of(contents.metadata["thimble"]), path);
    if (!info.is_object() || info.value("name", "") != name) throw FormatError(path, "not a solved layer of this name");
    RowScaledCodes codes;
    codes.max_code = info.at("max_code");
    Bytes code_bytes = tensor("codes", DType::kI8, element_count(shape));
    auto first = reinterpret_cast<const int8_t*>(code_bytes.data());
    codes.codes.assign(first, first + code_bytes.size());
    ByteCursor scales(tensor("row_scales", DType::kF16, shape[0]), path);
    for (int64_t r = 0; r < shape[0]; ++r) codes.row_scales.push_back(scales.read<uint16_t>("row scale"));
    return {{name, shape, std::move(codes)}, report_from(info.at("report"))};
  });
}

void WorkFolder::save_solution(uint64_t key, const SolvedTensor& solved) const {
  if (path_.empty()) return;
  const auto& codes = std::get<RowScaledCodes>(solved.tensor.data);
  ByteVector scales;
  for (uint16_t scale : codes.row_scales) append_little_endian(scales, scale);
  TensorMap tensors;
  tensors["codes"] = {DType::kI8, solved.tensor.shape, std::as_bytes(std::span(codes.codes))};
  tensors["row_scales"] = {DType::kF16, {static_cast<int64_t>(codes.row_scales.size())}, scales};
  Json info = {{"name", solved.tensor.name}, {"max_code", codes.max_code}, {"report", report_json(*solved.report)}};
  write_safetensors(file("solved", key, ".safetensors"), tensors, {{"thimble", canonical_json(info)}});
}

void WorkFolder::remove() const {
  if (path_.empty()) return;
  std::error_code ignored;  // the artifact is written; what cannot be cleaned up is not an error
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    std::string name = entry.path().filename().string();
    if (name.starts_with("tokens-") || name.starts_with("hessians-") || name.starts_with("solved-"))
      std::filesystem::remove(entry.path(), ignored);
  }
  std::filesystem::remove(path_, ignored);
}

}  // namespace thimble
