// cuda_model.cu: where each tensor goes in device memory, and the tables that follow from several.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "runtime/base/error.h"
#include "runtime/cpu/forward.h"
#include "runtime/cuda/cuda_model.cuh"
#include "runtime/cuda/cuda_weights.cuh"
#include "runtime/cuda/kernels/cuda_gemm.cuh"
#include "runtime/cuda/kernels/cuda_shape.h"
#include "runtime/families/golf/golf_layout.h"

namespace thimble {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

template <typename T>
CudaMatrix<T> zero_matrix(int64_t rows, int64_t columns) {
  CudaMatrix<T> matrix{DeviceArray<T>(rows * columns), static_cast<int>(rows), static_cast<int>(columns)};
  matrix.data.fill_zero();
  return matrix;
}

DeviceArray<float> padded_vector(std::span<const float> values, int64_t count) {
  if (values.empty()) return {};
  std::vector<float> padded(values.begin(), values.end());
  padded.resize(static_cast<size_t>(std::max<int64_t>(count, static_cast<int64_t>(values.size()))), 0.0f);
  return DeviceArray<float>(std::span<const float>(padded));
}

// table (rows of `embedding`, outputs) = scale * embedding projection^T.
template <typename T>
CudaMatrix<T> projected_table(const CudaMatrix<T>& embedding, const CudaMatrix<T>& projection, float scale) {
  auto table = zero_matrix<T>(embedding.rows, projection.rows);
  GemmOperands<T> operands{embedding.data.data(), embedding.columns, projection.data.data(),
                           embedding.rows,        projection.rows,   embedding.columns};
  launch_gemm<T, 1, 64, 3>(operands, ScaledEpilogue<T>{table.data.data(), table.columns, scale}, nullptr);
  return table;
}

// Where the matrices go, by unbanked name, and those that are not kept.
template <typename T>
struct MatrixPlaces {
  std::map<std::string, CudaPlacement<T>> of;
  CudaMatrix<T> bigram_projection, value_projection;  // until the tables are made

  void add(const std::string& name, const CudaMatrix<T>& to, int64_t first_row = 0, AxisMap row_map = {},
           AxisMap column_map = {}) {
    of[name] = {to.data.data(), to.columns, first_row, row_map, column_map};
  }
};

template <typename T>
MatrixPlaces<T> allocate_embeddings(CudaModel<T>& model, const CudaShape& shape, AxisMap heads) {
  const ModelConfig& c = model.config;
  MatrixPlaces<T> places;
  model.token_embedding = zero_matrix<T>(shape.vocabulary, shape.width);
  places.add("tok_emb.weight", model.token_embedding);
  if (!c.tie_embeddings) {
    model.untied_head = zero_matrix<T>(shape.vocabulary, shape.width);
    places.add("lm_head.weight", model.untied_head);
  }
  if (c.bigram_vocab_size > 0) {
    model.bigram_embedding = zero_matrix<T>(c.bigram_vocab_size, shape.bigram_width);
    places.add("bigram.embed.weight", model.bigram_embedding);
    places.bigram_projection = zero_matrix<T>(shape.width, shape.bigram_width);
    places.add("bigram.proj.weight", places.bigram_projection);
  }
  if (!c.ve_layers.empty()) {
    model.value_embedding = zero_matrix<T>(c.vocab_size, shape.value_width);
    places.add("ve_shared.embed.weight", model.value_embedding);
    places.value_projection = zero_matrix<T>(shape.kv_columns, shape.value_width);
    places.add("ve_shared.proj.weight", places.value_projection, 0, heads);
  }
  return places;
}

template <typename T>
void allocate_layer(CudaLayer<T>& layer, const CudaShape& shape) {
  layer.qkv = zero_matrix<T>(shape.query_columns + 2 * shape.kv_columns, shape.width);
  layer.output = zero_matrix<T>(shape.width, shape.query_columns);
  layer.up = zero_matrix<T>(shape.mlp_width, shape.width);
  layer.down = zero_matrix<T>(shape.width, shape.mlp_width);
}

// How an axis of heads is padded, and one whose elements rotate in pairs besides.
struct HeadMaps {
  AxisMap heads, rotated;

  HeadMaps(const ModelConfig& c, const CudaShape& shape)
      : heads{static_cast<int>(c.head_dim()), shape.head_width, 0},
        rotated{static_cast<int>(c.head_dim()), shape.head_width, static_cast<int>(c.rope_dims / 2)} {}
};

template <typename T>
void add_layer_places(const CudaModel<T>& model, MatrixPlaces<T>& places) {
  const CudaShape shape = cuda_shape(model.config);
  const HeadMaps maps(model.config, shape);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const CudaLayer<T>& layer = model.layers[i];
    const LayerNames names(static_cast<int64_t>(i));
    places.add(names.query, layer.qkv, 0, maps.rotated);
    places.add(names.key, layer.qkv, shape.query_columns, maps.rotated);
    places.add(names.value, layer.qkv, shape.query_columns + shape.kv_columns, maps.heads);
    places.add(names.output, layer.output, 0, {}, maps.heads);
    places.add(names.up, layer.up);
    places.add(names.down, layer.down);
  }
}

// Sets the model's shape and gives its matrices room.
template <typename T>
MatrixPlaces<T> allocate_matrices(CudaModel<T>& model) {
  const ModelConfig& c = model.config;
  CudaShape shape = cuda_shape(c);
  model.width = shape.width;
  model.mlp_width = shape.mlp_width;
  model.head_width = shape.head_width;
  MatrixPlaces<T> places = allocate_embeddings(model, shape, HeadMaps(c, shape).heads);
  for (int64_t i = 0; i < c.num_layers; ++i) allocate_layer(model.layers.emplace_back(), shape);
  add_layer_places(model, places);
  return places;
}

// The tables, once the matrices are in place, and the tensors that are no matrices.
template <typename T>
void complete(CudaModel<T>& model, const MatrixPlaces<T>& places, const Model& small) {
  const ModelConfig& c = model.config;
  if (c.bigram_vocab_size > 0)
    model.bigram_table = projected_table(model.bigram_embedding, places.bigram_projection, small.bigram_scale);
  if (!c.ve_layers.empty()) model.value_table = projected_table(model.value_embedding, places.value_projection, 1.0f);
  model.smear_gate = padded_vector(small.smear_gate, model.width);
  for (size_t i = 0; i < small.layers.size(); ++i) {
    const LayerWeights& from = small.layers[i];
    CudaLayer<T>& to = model.layers[i];
    auto head_dim = static_cast<float>(c.head_dim());
    std::vector<float> query_scale;
    for (float gain : from.q_gain) query_scale.push_back(gain * kLog2E / std::sqrt(head_dim));
    for (float scale : query_scale) to.largest_score = std::max(to.largest_score, std::abs(scale) * head_dim);
    to.query_scale = DeviceArray<float>(std::span<const float>(query_scale));
    to.attn_scale = padded_vector(from.attn_scale, model.width);
    to.mlp_scale = padded_vector(from.mlp_scale, model.width);
    to.mix_x = padded_vector(from.mix_x, model.width);
    to.mix_x0 = padded_vector(from.mix_x0, model.width);
    to.skip_weight = padded_vector(from.skip_weight, model.width);
    to.skip_gate = padded_vector(from.skip_gate, model.width);
    to.value_embedding_scale = from.value_embedding_scale;
  }
  check_cuda(cudaDeviceSynchronize());
}

// Row scales of all coded tensors, one after the other, and where each tensor's begin.
struct RowScales {
  DeviceArray<uint16_t> all;
  std::vector<int64_t> first;
};

RowScales upload_row_scales(const QuantizedModel& model) {
  RowScales scales;
  std::vector<uint16_t> all;
  for (const QuantizedTensor& tensor : model.tensors) {
    scales.first.push_back(static_cast<int64_t>(all.size()));
    if (const auto* coded = std::get_if<RowScaledCodes>(&tensor.data))
      all.insert(all.end(), coded->row_scales.begin(), coded->row_scales.end());
  }
  scales.all = DeviceArray<uint16_t>(std::span<const uint16_t>(all));
  return scales;
}

template <typename T>
void place_stored(const StoredModel& stored, const BlockFeed& feed, const MatrixPlaces<T>& places) {
  const std::vector<QuantizedTensor>& tensors = stored.model().tensors;
  RowScales scales = upload_row_scales(stored.model());
  CudaWeightLoader<T> loader;
  for (const QuantizedTensor& tensor : tensors)
    if (const auto* raw = std::get_if<RawTensor>(&tensor.data); raw && places.of.contains(tensor.name))
      loader.place(raw->dtype, raw->bytes, tensor.shape[0], tensor.shape[1], places.of.at(tensor.name));
  for (size_t b = 0; b < stored.blocks().size(); ++b) {
    const CodeBlock& block = stored.blocks()[b];
    const QuantizedTensor& tensor = tensors[block.tensor];
    if (!places.of.contains(tensor.name)) continue;
    HostCodes codes{unpacker_of(stored, b), feed.take(b), block.first, tensor.shape[1]};
    loader.place(codes, scales.all.data() + scales.first[block.tensor], static_cast<int>(b), places.of.at(tensor.name));
  }
  int bad = loader.finish();
  if (bad == CudaWeightLoader<T>::kNone) return;
  stored.unpack(static_cast<size_t>(bad), feed.take(static_cast<size_t>(bad)));  // throws, naming the code
  throw Error(ExitCode::kInternal, stored.path() + ": host and device disagree about block " + std::to_string(bad));
}

}  // namespace

template <typename T>
CudaModel<T>::CudaModel(const Model& model) : config(model.config) {
  MatrixPlaces<T> places = allocate_matrices(*this);
  CudaWeightLoader<T> loader;
  for (const auto& [name, matrix] : golf_matrices(model))
    loader.place(DType::kF32, std::as_bytes(matrix->values()), matrix->rows(), matrix->cols(), places.of.at(name));
  loader.finish();
  complete(*this, places, model);
}

template <typename T>
CudaModel<T>::CudaModel(const StoredModel& stored, const BlockFeed& feed)
    : config(quantized_config(stored.model(), stored.path())) {
  MatrixPlaces<T> places = allocate_matrices(*this);
  place_stored(stored, feed, places);
  complete(*this, places, bind_small_tensors(stored));
}

template <typename T>
void CudaModel<T>::replace(const std::string& name, const Matrix& values, CudaWeightLoader<T>& loader) {
  MatrixPlaces<T> places;
  add_layer_places(*this, places);
  loader.place(DType::kF32, std::as_bytes(values.values()), values.rows(), values.cols(), places.of.at(name));
  loader.finish();
}

template struct CudaModel<float>;
template struct CudaModel<__nv_bfloat16>;

DeviceArray<float2> make_cuda_rotary_table(const ModelConfig& config, int64_t context) {
  RotaryTable table = make_rotary_table(config, context);
  std::vector<float2> pairs;
  for (size_t i = 0; i < table.cosine.values().size(); ++i)
    pairs.push_back({table.cosine.values()[i], table.sine.values()[i]});
  return DeviceArray<float2>(std::span<const float2>(pairs));
}

}  // namespace thimble
