// cuda_sizes.cpp: see cuda_sizes.h.
#include "runtime/cuda/cuda_sizes.h"

#include <algorithm>
#include <cassert>
#include <string>

#include "runtime/base/error.h"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int64_t kRowMultiple = 8;    // columns of products come in eights
constexpr int64_t kLeastTile = 64;     // columns of a product's narrowest tile
constexpr int64_t kFloatMultiple = 4;  // 16-byte rows
constexpr int64_t kGramTile = 128, kGramPieceTokens = 2048;

bool keeps_values(const NumericPolicy& policy) {
  const bool is_plain =
      std::ranges::all_of(policy.roundings, [](const Rounding& r) { return r.value == Format::kFp32; });
  return is_plain && policy.logits_scale == 1 && policy.attention_scale == 1 && policy.mlp_scale == 1;
}

template <typename Id>
size_t index(Id id) {
  return static_cast<size_t>(id);
}

// Of the heads that attention leaves padded in a value: where a matrix reads it, its columns are padded alike.
int64_t padded_columns(const Network& network, const Fusion& fusion, MatrixId id) {
  for (const Node& node : network.nodes) {
    const auto* linear = std::get_if<op::Linear>(&node.operation);
    if (linear && linear->weight == id && fusion.has_padded_heads[index(node.inputs[0])])
      return fusion.places[index(node.inputs[0])].stride;
  }
  return round_up(network.matrix(id).columns, fusion.options.column_multiple);
}

}  // namespace

int64_t cuda_element_bytes(Numerics numerics) { return numerics == Numerics::kFp32 ? 4 : 2; }

FusionOptions cuda_plain_options(int64_t element_bytes) {
  return {.column_multiple = element_bytes == 4 ? kFloatMultiple : kRowMultiple};
}

FusionOptions cuda_fusion_options(const NumericPolicy& policy, int64_t element_bytes) {
  FusionOptions options = cuda_plain_options(element_bytes);
  options.fuses_products = keeps_values(policy);
  if (options.fuses_products) options.column_multiple = kRowMultiple;
  return options;
}

int64_t cuda_head_width(int64_t head_dim) {
  const int64_t padded = padded_head_width(head_dim);
  if (padded == 0)
    throw DeviceError("CUDA: heads of " + std::to_string(head_dim) + " columns; attention takes at most 256");
  return padded;
}

CudaWeightSizes cuda_weight_sizes(const Network& network, const Fusion& fusion) {
  CudaWeightSizes sizes;
  for (size_t i = 0; i < network.matrices.size(); ++i) {
    const auto id = static_cast<MatrixId>(i);
    const MatrixUse& use = network.matrix(id);
    sizes.matrices.push_back({round_up(use.rows, kRowMultiple), padded_columns(network, fusion, id)});
  }
  for (const VectorRule& rule : network.vectors) sizes.vectors.push_back(round_up(rule.count, kRowMultiple));
  for (const ProductTable& table : fusion.tables) {
    CudaMatrixSize& product = sizes.matrices[index(table.product)];
    if (table.head_dim > 0)
      product.rows = network.matrix(table.product).rows / table.head_dim * cuda_head_width(table.head_dim);
    sizes.tables.push_back({sizes.matrices[index(table.table)].rows, product.rows});
  }
  for (const Composite& composite : fusion.composites) {
    CudaMatrixSize projection;
    int64_t bias = 0, scale = 0;
    if (const auto* project = std::get_if<fused::Project>(&composite.work)) {
      const op::Attention& o = project->attention;
      projection = {(o.heads + 2 * o.kv_heads) * cuda_head_width(o.head_dim),
                    fusion.places[index(project->input.value)].stride};
      bias = project->has_bias() ? projection.rows : 0;
      scale = o.heads;
      for (const HeadSource* source : {&project->query, &project->key, &project->value})
        sizes.matrices[index(source->weight)] = {};
    } else if (const auto* add = std::get_if<fused::LinearAdd>(&composite.work)) {
      if (add->scale != kAbsent && network.vector(add->scale).count == 1)
        scale = fusion.places[index(add->output)].stride;
    }
    sizes.projections.push_back(projection);
    sizes.biases.push_back(bias);
    sizes.scales.push_back(scale);
  }
  return sizes;
}

CudaPassSizes cuda_pass_sizes(const Network& network, const Fusion& fusion, const NumericPolicy& policy,
                              const CudaPassShape& shape) {
  CudaPassSizes sizes;
  for (int64_t width : fusion.slot_widths) sizes.slots.push_back(width * shape.rows);
  for (int64_t width : fusion.compact_widths) sizes.slots.push_back(width * shape.needed);
  sizes.squares.assign(sizes.slots.size(), 0);
  for (size_t v = 0; v < fusion.places.size(); ++v) {
    if (!fusion.has_squares[v]) continue;
    for (const Place& place : {fusion.places[v], fusion.compact_places[v]}) {
      if (!place) continue;
      const bool is_compact = index(place.slot) >= fusion.slot_widths.size();
      int64_t& squares = sizes.squares[index(place.slot)];
      squares = std::max(squares, (is_compact ? shape.needed : shape.rows) * divide_up(place.stride, kLeastTile));
    }
  }
  for (const RotaryRule& rule : network.rotaries) sizes.rotaries.push_back(shape.context * (rule.dims / 2));
  const int64_t head_width = round_up(network.matrix(network.head.weight).columns, fusion.options.column_multiple);
  const bool is_compact = fusion.compacts_at < fusion.composites.size();
  if (!fusion.head.is_normed || !is_compact) sizes.head_input = shape.needed * head_width;
  if (fusion.head.is_normed && !is_compact) sizes.head_squares = shape.needed * divide_up(head_width, kLeastTile);
  sizes.loss_rows = shape.needed;
  sizes.loss_parts = shape.needed * divide_up(round_up(network.vocabulary(), kRowMultiple), kLeastTile);
  for (const Composite& composite : fusion.composites) {
    const auto* single = std::get_if<fused::Single>(&composite.work);
    if (!single || !std::holds_alternative<op::Linear>(network.nodes[single->node].operation)) continue;
    const Place& input = fusion.places[index(network.nodes[single->node].inputs[0])];
    const int64_t padded = round_up(input.width, fusion.options.column_multiple);
    if (input.first_column > 0 || padded != input.stride)
      sizes.product_input = std::max(sizes.product_input, shape.rows * padded);
  }
  if (policy.nvfp4)
    for (const Place& place : fusion.places)
      if (place) sizes.product_input = std::max(sizes.product_input, shape.rows * place.stride);
  return sizes;
}

int64_t cuda_shown_elements(const Network& network, int64_t rows) {
  int64_t widest = 0;
  for (const LinearInput& input : network.linear_inputs()) widest = std::max(widest, network.width_of(input.value));
  return widest * rows;
}

CudaCacheSizes cuda_cache_sizes(const Network& network, int64_t sequences, int64_t capacity, bool shares_one) {
  CudaCacheSizes sizes;
  int64_t widest = 0;
  for (const Node& node : network.nodes) {
    const auto* attention = std::get_if<op::Attention>(&node.operation);
    if (!attention) continue;
    const int64_t width = 2 * attention->kv_heads * cuda_head_width(attention->head_dim);
    sizes.caches.push_back(sequences * capacity * width);
    widest = std::max(widest, sizes.caches.back());
  }
  if (shares_one) sizes.caches = {widest};
  for (int64_t width : network.state_widths) sizes.states.push_back(sequences * width);
  return sizes;
}

CudaGradientSizes cuda_gradient_sizes(const Network& network, const PassPlan& plan, int64_t context, int64_t sequences,
                                      int64_t positions) {
  CudaGradientSizes sizes;
  const int64_t rows = sequences * positions;
  for (int64_t width : plan.slot_widths) sizes.slots.push_back(rows * round_up(width, kFloatMultiple));
  for (const RotaryRule& rule : network.rotaries) sizes.rotaries.push_back(context * (rule.dims / 2));
  sizes.logits = rows * network.vocabulary();
  sizes.losses = rows;
  int64_t widest = network.vocabulary();
  for (int64_t width : network.value_widths) widest = std::max(widest, width);
  for (const Node& node : network.nodes)
    if (const auto* attention = std::get_if<op::Attention>(&node.operation))
      sizes.scores = std::max(sizes.scores, sequences * attention->heads * positions * round_up(positions, 4));
  int64_t widest_value = 0;
  for (int64_t width : network.value_widths) widest_value = std::max(widest_value, width);
  sizes.scratch = rows * round_up(widest_value, kFloatMultiple);
  sizes.sums = sequences * divide_up(positions, kCudaDotPiece) * widest;
  return sizes;
}

int64_t cuda_text_logits(const Network& network, int64_t sequences) {
  return sequences * round_up(network.vocabulary(), kRowMultiple);
}

uint64_t cuda_gram_bytes(int64_t columns, int64_t length, int64_t sequences, uint64_t most_bytes) {
  const int64_t side = divide_up(columns, kGramTile), pieces = sequences * divide_up(length, kGramPieceTokens);
  const auto piece_bytes = static_cast<uint64_t>(side * (side + 1) / 2 * kGramTile * kGramTile) * sizeof(float);
  if (piece_bytes == 0) return 0;
  const auto affordable = std::max<uint64_t>(1, most_bytes / piece_bytes);
  return piece_bytes * std::min(affordable, static_cast<uint64_t>(pieces));
}

}  // namespace thimble
