// llmc_checkpoint.cpp: see llmc_checkpoint.h.
#include "quantizer/formats/llmc_checkpoint.h"

#include "runtime/base/byte_cursor.h"
#include "runtime/families/config_reader.h"
#include "runtime/families/gpt2/gpt2_config.h"

namespace thimble {
namespace {

constexpr uint32_t kLlmcMagic = 20240326;
constexpr int32_t kFloat32Version = 3, kBfloat16Version = 5;
constexpr uint64_t kHeaderInts = 256;
constexpr double kNormEpsilon = 1e-5;

struct Header {
  DType dtype = DType::kF32;
  Gpt2Config config;
  int64_t padded_vocab_size = 0;
};

int64_t read_size(ByteCursor& cursor, const std::string& object, int64_t most) {
  const auto value = cursor.read<int32_t>("header: " + object);
  if (value < 1 || value > most)
    throw FormatError(cursor.path(), "header: " + object + " is " + std::to_string(value) + ", allowed are 1 to " +
                                         std::to_string(most));
  return value;
}

Header read_header(ByteCursor& cursor) {
  const std::string& path = cursor.path();
  if (const auto magic = cursor.read<uint32_t>("header: magic number"); magic != kLlmcMagic)
    throw FormatError(path,
                      "header: magic number " + std::to_string(magic) + ", expected " + std::to_string(kLlmcMagic));
  const auto version = cursor.read<int32_t>("header: version");
  if (version != kFloat32Version && version != kBfloat16Version)
    throw FormatError(path, "header: version " + std::to_string(version) + ", read are 3 (float32) and 5 (bfloat16)");
  Header header;
  header.dtype = version == kFloat32Version ? DType::kF32 : DType::kBF16;
  Gpt2Config& c = header.config;
  c.num_positions = read_size(cursor, "max_seq_len", kMaxDimension);
  c.vocab_size = read_size(cursor, "vocab_size", kMostTokens);
  c.num_layers = read_size(cursor, "num_layers", kMaxLayers);
  c.num_heads = read_size(cursor, "num_heads", kMaxDimension);
  c.model_dim = read_size(cursor, "channels", kMaxDimension / 4);  // the MLP's width is a dimension, too
  header.padded_vocab_size = read_size(cursor, "padded_vocab_size", kMaxDimension);
  if (c.model_dim % c.num_heads != 0)
    throw FormatError(path, "header: num_heads is " + std::to_string(c.num_heads) + ", allowed is a divisor of " +
                                std::to_string(c.model_dim) + " channels");
  if (header.padded_vocab_size < c.vocab_size)
    throw FormatError(path, "header: padded_vocab_size is " + std::to_string(header.padded_vocab_size) +
                                ", allowed is at least vocab_size, " + std::to_string(c.vocab_size));
  c.mlp_dim = 4 * c.model_dim;
  c.norm_epsilon = kNormEpsilon;
  cursor.seek(kHeaderInts * sizeof(int32_t), "header");
  return header;
}

// Calls visit(name, shape) for every parameter in the order of the file.
template <typename Visit>
void for_each_parameter(const Header& header, const Visit& visit) {
  using Names = Gpt2LayerNames;
  const Gpt2Config& c = header.config;
  const int64_t D = c.model_dim, M = c.mlp_dim;
  visit(kGpt2TokenEmbedding, Shape{header.padded_vocab_size, D});
  visit(kGpt2PositionEmbedding, Shape{c.num_positions, D});
  // The weights of all layers, then their biases.
  for (const auto& [name, shape] : {std::pair{&Names::attention_norm, Shape{D}},
                                    {&Names::query_key_value, {3 * D, D}},
                                    {&Names::attention_output, {D, D}},
                                    {&Names::mlp_norm, {D}},
                                    {&Names::up, {M, D}},
                                    {&Names::down, {D, M}}})
    for (bool is_bias : {false, true})
      for (int64_t i = 0; i < c.num_layers; ++i) {
        const std::string weight = Names(i).*name;
        visit(is_bias ? bias_name(weight) : weight, is_bias ? Shape{shape[0]} : shape);
      }
  visit(kGpt2FinalNorm, Shape{D});
  visit(bias_name(kGpt2FinalNorm), Shape{D});
}

}  // namespace

bool looks_like_llmc(Bytes file) {
  return file.size() >= sizeof kLlmcMagic && ByteCursor(file, "").read<uint32_t>("magic number") == kLlmcMagic;
}

CheckpointContents read_llmc_checkpoint(Bytes file, const std::string& path) {
  ByteCursor cursor(file, path);
  const Header header = read_header(cursor);
  // No overflow of their sum: dimensions are below 2^24, layers at most 2^10.
  uint64_t expected = cursor.position();
  for_each_parameter(header, [&](const std::string& name, const Shape& shape) {
    expected += tensor_bytes_or_throw(header.dtype, shape, path + ": " + name);
  });
  if (file.size() != expected)
    throw FormatError(path, std::to_string(file.size()) + " B, its header asks for " + std::to_string(expected) + " B");
  CheckpointContents contents;
  contents.config = to_json(header.config);
  for_each_parameter(header, [&](const std::string& name, const Shape& shape) {
    const uint64_t bytes = tensor_bytes_or_throw(header.dtype, shape, path);
    contents.tensors[name] = {header.dtype, shape, cursor.take(bytes, name)};
  });
  TensorView& table = contents.tensors.at(kGpt2TokenEmbedding);
  table.shape[0] = header.config.vocab_size;
  table.bytes = table.bytes.first(tensor_bytes_or_throw(header.dtype, table.shape, path));
  return contents;
}

}  // namespace thimble
