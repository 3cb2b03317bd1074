// text_model.cpp: see text_model.h. Between an artifact's tensors, a family's description, the CPU's forward pass and a
// tokenizer; each is the program's own.
#include "examples/browser/module/text_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <variant>
#include <vector>

#include "eval/tokenizers/sentencepiece_bpe.h"
#include "runtime/base/error.h"
#include "runtime/cpu/cpu_text.h"
#include "runtime/families/description.h"

namespace {

using namespace thimble;

constexpr const char* kArtifact = "model";
constexpr const char* kTokenizer = "tokenizer";
constexpr double kMaxTemperature = 100;
constexpr int64_t kMostNewTokens = 1 << 20;

// What a function of the decoder did not do.
struct DecodeFailure {
  thimble_status status;
  thimble_error error;
};

template <typename Call>
void decode_or_throw(const Call& call) {
  DecodeFailure failure{};
  failure.status = call(&failure.error);
  if (failure.status != THIMBLE_OK) throw failure;
}

thimble_status fail(thimble_error* error, thimble_status status, const char* text) {
  if (error) {
    std::strncpy(error->text, text, sizeof(error->text) - 1);
    error->text[sizeof(error->text) - 1] = '\0';
  }
  return status;
}

// Exit codes of the program have the numbers of statuses.
template <typename Body>
thimble_status guarded(thimble_error* error, const Body& body) {
  try {
    body();
    if (error) error->text[0] = '\0';
    return THIMBLE_OK;
  } catch (const DecodeFailure& failure) {
    return fail(error, failure.status, failure.error.text);
  } catch (const Error& failure) {
    return fail(error, static_cast<thimble_status>(failure.code()), failure.what());
  } catch (const std::bad_alloc&) {
    return fail(error, THIMBLE_NO_MEMORY, "not enough memory");
  } catch (const std::exception& failure) {
    return fail(error, THIMBLE_INTERNAL, failure.what());
  }
}

thimble_tensor tensor_at(const thimble_artifact* artifact, size_t index) {
  thimble_tensor tensor{};
  decode_or_throw([&](thimble_error* error) { return thimble_tensor_at(artifact, index, &tensor, error); });
  return tensor;
}

void decode_into(thimble_artifact* artifact, size_t index, thimble_type type, void* to, size_t bytes) {
  decode_or_throw([&](thimble_error* error) { return thimble_decode(artifact, index, type, to, bytes, error); });
}

// None where levels are not what the model keeps.
using Levels = std::variant<std::monostate, std::vector<int8_t>, std::vector<int16_t>>;

template <typename Level>
Levels levels_of(thimble_artifact* artifact, size_t index, const thimble_tensor& tensor, thimble_type type) {
  std::vector<Level> levels(tensor.elements);
  decode_or_throw([&](thimble_error* error) {
    return thimble_decode_levels(artifact, index, type, levels.data(), levels.size() * sizeof(Level), error);
  });
  return levels;
}

// In as little memory as holds them.
Levels levels_of(thimble_artifact* artifact, size_t index, const thimble_tensor& tensor) {
  if (!tensor.has_levels || tensor.blocks != 1) return {};
  uint32_t largest = 0;
  decode_or_throw([&](thimble_error* error) { return thimble_largest_level(artifact, index, &largest, error); });
  if (largest <= INT8_MAX) return levels_of<int8_t>(artifact, index, tensor, THIMBLE_I8);
  if (largest <= INT16_MAX) return levels_of<int16_t>(artifact, index, tensor, THIMBLE_I16);
  return {};
}

StoredMatrix scaled(thimble_artifact* artifact, size_t index, const thimble_tensor& tensor, Levels levels) {
  std::vector<float> rows(tensor.rows), columns(tensor.columns);
  decode_or_throw(
      [&](thimble_error* error) { return thimble_decode_scales(artifact, index, rows.data(), columns.data(), error); });
  if (auto* small = std::get_if<std::vector<int8_t>>(&levels))
    return {std::move(*small), std::move(rows), std::move(columns)};
  return {std::move(std::get<std::vector<int16_t>>(levels)), std::move(rows), std::move(columns)};
}

// In as little memory as holds the values exactly. `levels`: those decoded before.
StoredMatrix matrix_of(thimble_artifact* artifact, size_t index, const thimble_tensor& tensor, Levels levels) {
  const auto rows = static_cast<int64_t>(tensor.rows), columns = static_cast<int64_t>(tensor.columns);
  if (std::holds_alternative<std::monostate>(levels)) levels = levels_of(artifact, index, tensor);
  if (!std::holds_alternative<std::monostate>(levels)) return scaled(artifact, index, tensor, std::move(levels));
  const bool is_fp16 = tensor.stored_as == std::string_view("F16");
  if (is_fp16 || tensor.stored_as == std::string_view("BF16")) {
    Tensor halves{is_fp16 ? DType::kF16 : DType::kBF16, {rows, columns}, {}};
    halves.bytes.resize(tensor.elements * sizeof(uint16_t));
    decode_into(artifact, index, is_fp16 ? THIMBLE_F16 : THIMBLE_BF16, halves.bytes.data(), halves.bytes.size());
    return {std::make_shared<const Tensor>(std::move(halves)), rows, columns};
  }
  Matrix values(rows, columns);
  decode_into(artifact, index, THIMBLE_F32, values.data(), tensor.elements * sizeof(float));
  return values;
}

// Where memory is addressed by 32 bits, sizes that no address has must not be taken for small ones.
void check_memory(uint64_t rows, uint64_t columns) {
  if (rows > PTRDIFF_MAX / sizeof(float) / columns) throw std::bad_alloc();
}

// Of what a pass keeps for every position, and of attention's scores of a tile.
uint64_t widest_row(const Network& network) {
  int64_t widest = 128;
  for (int64_t width : network.value_widths) widest = std::max(widest, width);
  for (int64_t width : network.cache_widths) widest = std::max(widest, width);
  return static_cast<uint64_t>(widest);
}

TensorMap shapes_of(const thimble_artifact* artifact) {
  TensorMap shapes;
  for (size_t i = 0; i < thimble_tensor_count(artifact); ++i) {
    const thimble_tensor tensor = tensor_at(artifact, i);
    const DType dtype = tensor.has_levels ? DType::kF32 : dtype_from_name(tensor.stored_as, kArtifact);
    shapes.emplace(tensor.name, TensorView{dtype, Shape(tensor.shape, tensor.shape + tensor.rank), {}});
  }
  return shapes;
}

Description description_of(const thimble_artifact* artifact) {
  const Json config = parse_json(as_bytes_of(thimble_config(artifact)), kArtifact);
  return describe_model(config, shapes_of(artifact), {kArtifact, kArtifact});
}

}  // namespace

struct thimble_text_model {
  thimble_text_model(thimble_artifact* from, Bytes tokenizer_file)
      : artifact(from),
        description(description_of(from)),
        network(*description.network),
        tokenizer(tokenizer_file, kTokenizer),
        is_loaded(thimble_tensor_count(from)),
        missing(is_loaded.size()) {
    if (tokenizer.vocab_size() != network.vocabulary())
      throw FormatError(kTokenizer, "has " + std::to_string(tokenizer.vocab_size()) +
                                        " pieces, the model a vocabulary of " + std::to_string(network.vocabulary()));
    const auto start = document_start_of(tokenizer);
    if (!start) throw FormatError(kTokenizer, "no BOS piece, and token 1 stands for text");
    document_start = *start;
    for (const MatrixUse& use : network.matrices) matrices[use.name];
  }

  void check_index(size_t index) const {
    if (index >= is_loaded.size())
      throw UsageError("tensor " + std::to_string(index) + ", the artifact has " + std::to_string(is_loaded.size()));
  }

  bool load_levels(size_t index) {
    check_index(index);
    if (is_loaded[index] || waiting.contains(index)) return true;
    const thimble_tensor tensor = tensor_at(artifact, index);
    check_memory(tensor.elements, 1);
    if (!matrices.contains(tensor.name)) return false;
    Levels levels = levels_of(artifact, index, tensor);
    if (std::holds_alternative<std::monostate>(levels)) return false;
    waiting.emplace(index, std::move(levels));
    return true;
  }

  void load(size_t index) {
    check_index(index);
    if (is_loaded[index]) return;
    const thimble_tensor tensor = tensor_at(artifact, index);
    check_memory(tensor.elements, 1);
    if (const auto matrix = matrices.find(tensor.name); matrix != matrices.end()) {
      auto before = waiting.extract(index);
      matrix->second = matrix_of(artifact, index, tensor, before ? std::move(before.mapped()) : Levels());
    } else {
      std::vector<float>& values = others[tensor.name];
      values.resize(tensor.elements);
      decode_into(artifact, index, THIMBLE_F32, values.data(), values.size() * sizeof(float));
    }
    is_loaded[index] = true;
    if (--missing == 0)
      weights =
          std::make_unique<const Weights>(bind_weights(description.network, std::move(matrices), std::move(others)));
  }

  void begin(std::string_view prompt, const TextOptions& options) {
    if (!weights) throw UsageError("the text begins before all tensors are loaded");
    if (!(options.temperature >= 0 && options.temperature <= kMaxTemperature))
      throw UsageError("the temperature must be from 0 to 100");
    if (options.most_new_tokens < 1 || options.most_new_tokens > kMostNewTokens)
      throw UsageError("new tokens must be 1 to " + std::to_string(kMostNewTokens));
    std::vector<Token> tokens = {document_start};
    for (Token token : tokenizer.encode(prompt)) tokens.push_back(token);
    const int64_t context = static_cast<int64_t>(tokens.size()) + options.most_new_tokens;
    check_positions(description.most_positions, context, kArtifact);
    check_memory(static_cast<uint64_t>(context), widest_row(network));
    shown.reset();
    text.reset();
    pass = std::make_unique<CpuPass>(*weights, context);
    text = std::make_unique<CpuText>(*pass, tokens, options);
    remaining = options.most_new_tokens;
    shown = std::make_unique<SentencePieceBpe::Text>(tokenizer);
    for (size_t i = 1; i < tokens.size(); ++i) shown->add(tokens[i]);
  }

  thimble_text_step_result step() {
    if (!shown) throw UsageError("no text was begun");
    Token token = -1;
    if (remaining > 0) {
      token = text->next();
      --remaining;
      // A control token ends the document.
      if (tokenizer.kind(token) == PieceKind::kBoundary) {
        token = -1;
        remaining = 0;
      }
    }
    added = token < 0 ? shown->end() : shown->add(token);
    return {token, token < 0, added.data(), added.size()};
  }

  thimble_artifact* artifact;
  Description description;
  const Network& network;
  SentencePieceBpe tokenizer;
  Token document_start = 0;
  std::vector<bool> is_loaded;  // by index of the tensor
  size_t missing;
  std::map<std::string, StoredMatrix> matrices;  // those loaded, until all are
  FloatTensors others;
  std::map<size_t, Levels> waiting;  // for their scales, by index of the tensor
  std::unique_ptr<const Weights> weights;

  // Of the text that was begun.
  std::unique_ptr<CpuPass> pass;
  std::unique_ptr<CpuText> text;
  std::unique_ptr<SentencePieceBpe::Text> shown;
  int64_t remaining = 0;
  std::string added;  // by the last step
};

thimble_status thimble_text_create(thimble_artifact* artifact, const void* tokenizer, size_t tokenizer_bytes,
                                   thimble_text_model** model, thimble_error* error) {
  *model = nullptr;
  return guarded(error, [&] {
    *model = new thimble_text_model(artifact, {static_cast<const std::byte*>(tokenizer), tokenizer_bytes});
  });
}

void thimble_text_close(thimble_text_model* model) { delete model; }

thimble_status thimble_text_load_levels(thimble_text_model* model, size_t tensor, int32_t* taken,
                                        thimble_error* error) {
  *taken = 0;
  return guarded(error, [&] { *taken = model->load_levels(tensor); });
}

thimble_status thimble_text_load(thimble_text_model* model, size_t tensor, thimble_error* error) {
  return guarded(error, [&] { model->load(tensor); });
}

size_t thimble_text_missing(const thimble_text_model* model) { return model->missing; }

uint32_t thimble_text_vocabulary(const thimble_text_model* model) {
  return static_cast<uint32_t>(model->network.vocabulary());
}

uint64_t thimble_text_most_tokens(const thimble_text_model* model) {
  const Description& description = model->description;
  return static_cast<uint64_t>(description.most_positions.value_or(description.trained_positions.value_or(0)));
}

thimble_status thimble_text_encode(const thimble_text_model* model, const char* text, size_t text_bytes,
                                   int32_t* tokens, size_t capacity, size_t* count, thimble_error* error) {
  *count = 0;
  return guarded(error, [&] {
    const std::vector<Token> found = model->tokenizer.encode({text, text_bytes});
    *count = found.size();
    if (found.size() > capacity)
      throw UsageError("the text has " + std::to_string(found.size()) + " tokens, there is room for " +
                       std::to_string(capacity));
    std::copy(found.begin(), found.end(), tokens);
  });
}

thimble_status thimble_text_begin(thimble_text_model* model, const char* prompt, size_t prompt_bytes, uint64_t seed,
                                  double temperature, uint32_t most_new_tokens, thimble_error* error) {
  return guarded(error, [&] { model->begin({prompt, prompt_bytes}, {most_new_tokens, temperature, seed}); });
}

thimble_status thimble_text_step(thimble_text_model* model, thimble_text_step_result* result, thimble_error* error) {
  return guarded(error, [&] { *result = model->step(); });
}
