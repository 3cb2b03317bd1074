// llmc_checkpoint.cpp: see llmc_checkpoint.h.
#include "quantizer/checkpoints/llmc_checkpoint.h"

#include "runtime/base/byte_cursor.h"
#include "runtime/base/checked.h"
#include "runtime/families/config_reader.h"
#include "runtime/families/gpt2/gpt2_config.h"

namespace thimble {
namespace {

constexpr uint32_t kMagic = 20240326;
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
  if (const auto magic = cursor.read<uint32_t>("header: magic number"); magic != kMagic)
    throw FormatError(path, "header: magic number " + std::to_string(magic) + ", expected " + std::to_string(kMagic));
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

// Takes the parameters in their order.
class ParameterReader {
 public:
  ParameterReader(ByteCursor& cursor, const Header& header) : cursor_(cursor), dtype_(header.dtype) {}

  void add(const std::string& name, const Shape& shape) {
    const uint64_t count = element_count_or_throw(shape, cursor_.path() + ": " + name);
    tensors_[name] = {dtype_, shape, cursor_.take(mul_or_throw(count, dtype_bytes(dtype_), cursor_.path()), name)};
  }
  // One tensor of every layer.
  void add_layers(int64_t layers, std::string Gpt2LayerNames::*name, bool is_bias, const Shape& shape) {
    for (int64_t i = 0; i < layers; ++i) {
      const std::string weight = Gpt2LayerNames(i).*name;
      add(is_bias ? bias_name(weight) : weight, shape);
    }
  }
  TensorMap finish() && { return std::move(tensors_); }

 private:
  ByteCursor& cursor_;
  DType dtype_;
  TensorMap tensors_;
};

// Elements of all parameters. No overflow: dimensions are below 2^24, layers at most 2^10.
uint64_t parameter_count(const Header& header) {
  const Gpt2Config& c = header.config;
  const auto D = static_cast<uint64_t>(c.model_dim), n = static_cast<uint64_t>(c.num_layers);
  return (static_cast<uint64_t>(header.padded_vocab_size) + static_cast<uint64_t>(c.num_positions)) * D +
         n * (12 * D * D + 13 * D) + 2 * D;
}

void check_length(const Header& header, uint64_t file_bytes, const std::string& path) {
  const uint64_t expected = kHeaderInts * sizeof(int32_t) + parameter_count(header) * dtype_bytes(header.dtype);
  if (file_bytes != expected)
    throw FormatError(path, std::to_string(file_bytes) + " B, its header asks for " + std::to_string(expected) + " B");
}

}  // namespace

bool looks_like_llmc(Bytes file) {
  return file.size() >= sizeof kMagic && ByteCursor(file, "").read<uint32_t>("magic number") == kMagic;
}

LlmcContents read_llmc_checkpoint(Bytes file, const std::string& path) {
  ByteCursor cursor(file, path);
  const Header header = read_header(cursor);
  check_length(header, file.size(), path);
  const Gpt2Config& c = header.config;
  const int64_t n = c.num_layers, D = c.model_dim, M = c.mlp_dim;
  ParameterReader reader(cursor, header);
  using Names = Gpt2LayerNames;
  reader.add(kGpt2TokenEmbedding, {header.padded_vocab_size, D});
  reader.add(kGpt2PositionEmbedding, {c.num_positions, D});
  reader.add_layers(n, &Names::attention_norm, false, {D});
  reader.add_layers(n, &Names::attention_norm, true, {D});
  reader.add_layers(n, &Names::query_key_value, false, {3 * D, D});
  reader.add_layers(n, &Names::query_key_value, true, {3 * D});
  reader.add_layers(n, &Names::attention_output, false, {D, D});
  reader.add_layers(n, &Names::attention_output, true, {D});
  reader.add_layers(n, &Names::mlp_norm, false, {D});
  reader.add_layers(n, &Names::mlp_norm, true, {D});
  reader.add_layers(n, &Names::up, false, {M, D});
  reader.add_layers(n, &Names::up, true, {M});
  reader.add_layers(n, &Names::down, false, {D, M});
  reader.add_layers(n, &Names::down, true, {D});
  reader.add(kGpt2FinalNorm, {D});
  reader.add(bias_name(kGpt2FinalNorm), {D});
  LlmcContents contents{std::move(reader).finish(), to_json(c)};
  TensorView& table = contents.tensors.at(kGpt2TokenEmbedding);
  table.shape[0] = c.vocab_size;
  table.bytes = table.bytes.first(static_cast<uint64_t>(c.vocab_size * D) * dtype_bytes(header.dtype));
  return contents;
}

}  // namespace thimble
