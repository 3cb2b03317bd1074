// cuda_network_weights.cu: where each matrix goes in device memory, and what follows from several.
#include "runtime/cuda/cuda_network_weights.cuh"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <map>

#include "runtime/cuda/kernels/cuda_rotary.cuh"
#include "runtime/cuda/kernels/cuda_rows.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int64_t kRowMultiple = 8;          // columns of products come in eights
constexpr int64_t kFloatMultiple = 4;        // 16-byte rows
constexpr int kGateRows = kRowMultiple / 2;  // of a gate, followed by as many of what it multiplies

template <typename Id>
size_t index(Id id) {
  return static_cast<size_t>(id);
}

void upload(std::vector<float> values, DeviceArray<float>& to) {
  values.resize(index(to.count()), 0.0f);
  to.copy(values);
}

bool keeps_values(const NumericPolicy& policy) {
  const bool is_plain =
      std::ranges::all_of(policy.roundings, [](const Rounding& r) { return r.value == Format::kFp32; });
  return is_plain && policy.logits_scale == 1 && policy.attention_scale == 1 && policy.mlp_scale == 1;
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

AxisMap head_map(int64_t head_dim, int64_t rotated = 0) {
  return {static_cast<int>(head_dim), static_cast<int>(cuda_head_width(head_dim)), static_cast<int>(rotated)};
}

}  // namespace

FusionOptions cuda_plain_options(size_t element_bytes) {
  return {.column_multiple = element_bytes == sizeof(float) ? kFloatMultiple : kRowMultiple};
}

FusionOptions cuda_fusion_options(const NumericPolicy& policy, size_t element_bytes) {
  FusionOptions options = cuda_plain_options(element_bytes);
  options.fuses_products = keeps_values(policy);
  options.folds_gains = options.fuses_products && !policy.nvfp4;
  if (options.fuses_products) options.column_multiple = kRowMultiple;
  return options;
}

int64_t cuda_head_width(int64_t head_dim) {
  const int64_t padded = padded_head_width(head_dim);
  if (padded == 0)
    throw DeviceError("CUDA: heads of " + std::to_string(head_dim) + " columns; attention takes at most 256");
  return padded;
}

template <typename T>
CudaNetworkWeights<T>::CudaNetworkWeights(std::shared_ptr<const Network> network, const NumericPolicy& policy,
                                          const FusionOptions& options)
    : network_(std::move(network)),
      policy_(policy),
      fusion_(fuse(*network_, options)),
      placements_(network_->matrices.size()),
      scales_(fusion_.composites.size()),
      project_vectors_(fusion_.composites.size()) {
  allocate();
  find_placements();
}

template <typename T>
void CudaNetworkWeights<T>::allocate() {
  struct Size {
    int64_t rows = 0, columns = 0;
  };
  std::vector<Size> sizes;
  for (size_t i = 0; i < network_->matrices.size(); ++i) {
    const auto id = static_cast<MatrixId>(i);
    sizes.push_back({round_up(network_->matrix(id).rows, kRowMultiple), padded_columns(*network_, fusion_, id)});
  }
  int64_t elements = 0;
  for (const VectorRule& rule : network_->vectors) {
    vector_places_.push_back(elements);
    elements += round_up(rule.count, kRowMultiple);
  }
  vectors_ = DeviceArray<float>(elements, "weights");
  for (const ProductTable& table : fusion_.tables) {
    Size& product = sizes[index(table.product)];
    if (table.head_dim > 0)
      product.rows = network_->matrix(table.product).rows / table.head_dim * cuda_head_width(table.head_dim);
    tables_.emplace_back(sizes[index(table.table)].rows, product.rows);
  }
  for (size_t c = 0; c < fusion_.composites.size(); ++c) {
    Size joint;
    if (const auto* project = std::get_if<fused::Project>(&fusion_.composites[c].work)) {
      const op::Attention& o = project->attention;
      joint = {(o.heads + 2 * o.kv_heads) * cuda_head_width(o.head_dim),
               fusion_.places[index(project->input.value)].stride};
      project_vectors_[c].query_scale = DeviceArray<float>(o.heads, "weights");
      if (project->has_bias()) project_vectors_[c].bias = DeviceArray<float>(joint.rows, "weights");
      for (const HeadSource* source : {&project->query, &project->key, &project->value})
        sizes[index(source->weight)] = {};  // lies in the joint matrix
    } else if (const auto* gate = std::get_if<fused::LinearGate>(&fusion_.composites[c].work)) {
      joint = {2 * sizes[index(gate->gate)].rows, fusion_.places[index(gate->input.value)].stride};
      sizes[index(gate->gate)] = sizes[index(gate->up)] = {};
    } else if (const auto* add = std::get_if<fused::LinearAdd>(&fusion_.composites[c].work)) {
      if (add->scale != kAbsent && network_->vector(add->scale).count == 1)  // as a vector
        scales_[c] = DeviceArray<float>(fusion_.places[index(add->output)].stride, "weights");
    }
    joint_matrices_.emplace_back(joint.rows, joint.columns);
  }
  for (const Size& size : sizes) matrices_.emplace_back(size.rows, size.columns);
}

template <typename T>
CudaNetworkWeights<T>::CudaNetworkWeights(const Weights& weights, const NumericPolicy& policy,
                                          const FusionOptions& options)
    : CudaNetworkWeights(weights.network, policy, options) {
  load_vectors(weights.vectors);  // gains first
  for (size_t i = 0; i < network_->matrices.size(); ++i) {
    const auto id = static_cast<MatrixId>(i);
    load(id, weights.matrix(id), weights.is_in_nvfp4(id));
  }
  loader_.finish();
  use_vectors();
}

template <typename T>
void CudaNetworkWeights<T>::find_placements() {
  std::map<ValueId, AxisMap> attended;  // what attention leaves, heads padded
  for (const Composite& composite : fusion_.composites)
    if (const auto* attend = std::get_if<fused::Attend>(&composite.work); attend && attend->is_projected)
      attended[attend->output] = head_map(attend->attention.head_dim);
  std::vector<AxisMap> column_maps(matrices_.size());
  for (const Node& node : network_->nodes)
    if (const auto* linear = std::get_if<op::Linear>(&node.operation))
      if (const auto found = attended.find(node.inputs[0]); found != attended.end())
        column_maps[index(linear->weight)] = found->second;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    if (matrices_[i].rows == 0) continue;
    const MatrixUse& use = network_->matrix(static_cast<MatrixId>(i));
    CudaPlacement<T> place{matrices_[i].data.data(),       matrices_[i].columns, 0, {}, column_maps[i], 0, use.rows,
                           vector(fusion_.column_gains[i])};
    for (const ProductTable& table : fusion_.tables)
      if (index(table.product) == i && table.head_dim > 0) place.row_map = head_map(table.head_dim);
    placements_[i].push_back(place);
  }
  for (size_t c = 0; c < fusion_.composites.size(); ++c) {
    const FusedWork& work = fusion_.composites[c].work;
    if (const auto* project = std::get_if<fused::Project>(&work)) place_projection(c, *project);
    if (const auto* gate = std::get_if<fused::LinearGate>(&work)) place_gate(c, *gate);
  }
}

template <typename T>
void CudaNetworkWeights<T>::place_projection(size_t composite, const fused::Project& project) {
  const CudaMatrix<T>& to = joint_matrices_[composite];
  const op::Attention& o = project.attention;
  const int64_t padded = cuda_head_width(o.head_dim);
  const int64_t rotated = project.rotary == kAbsent ? 0 : network_->rotaries[index(project.rotary)].dims / 2;
  auto add = [&](const HeadSource& source, int64_t first_row, AxisMap rows) {
    placements_[index(source.weight)].push_back({to.data.data(),
                                                 to.columns,
                                                 first_row,
                                                 rows,
                                                 {},
                                                 source.first_row,
                                                 source.rows,
                                                 vector(fusion_.column_gains[index(source.weight)])});
  };
  add(project.query, 0, head_map(o.head_dim, rotated));
  add(project.key, o.heads * padded, head_map(o.head_dim, rotated));
  add(project.value, (o.heads + o.kv_heads) * padded, head_map(o.head_dim));
}

template <typename T>
void CudaNetworkWeights<T>::place_gate(size_t composite, const fused::LinearGate& gate) {
  const CudaMatrix<T>& to = joint_matrices_[composite];
  const AxisMap rows{kGateRows, 2 * kGateRows};
  for (MatrixId id : {gate.gate, gate.up})
    placements_[index(id)].push_back({to.data.data(),
                                      to.columns,
                                      id == gate.gate ? 0 : kGateRows,
                                      rows,
                                      {},
                                      0,
                                      network_->matrix(id).rows,
                                      vector(fusion_.column_gains[index(id)])});
}

template <typename T>
void CudaNetworkWeights<T>::load(MatrixId id, const StoredMatrixView& values, bool is_in_nvfp4) {
  assert(!placements_[index(id)].empty());
  std::optional<Matrix> staged;
  if (!is_in_nvfp4) staged = staged_matrix(policy_, *network_, id, values);
  for (const CudaPlacement<T>& place : placements_[index(id)])
    loader_.place(staged ? StoredMatrixView(*staged) : values, policy_.weights, place);
}

template <typename T>
void CudaNetworkWeights<T>::replace(MatrixId id, const StoredMatrixView& values) {
  load(id, values, /*is_in_nvfp4=*/false);
  loader_.finish();
  for (size_t i = 0; i < fusion_.tables.size(); ++i)
    if (fusion_.tables[i].table == id || fusion_.tables[i].product == id) make_table(i);
}

// table (rows of the looked-up one, N) = scale * table product^T.
template <typename T>
void CudaNetworkWeights<T>::make_table(size_t i) {
  const ProductTable& table = fusion_.tables[i];
  const CudaMatrix<T>&from = matrix(table.table), &product = matrix(table.product), &to = tables_[i];
  assert(from.columns == product.columns && to.rows == from.rows && to.columns == product.rows);
  GemmOperands<T> operands{from.data.data(), from.columns, product.data.data(), from.rows, product.rows, from.columns};
  DeviceArray<T> staged(policy_.nvfp4 ? from.data.count() : 0);
  if (policy_.nvfp4) {
    const HeadColumns columns{1, static_cast<int>(network_->matrix(table.table).columns), from.columns};
    staged.fill_zero();
    launch_stage_nvfp4(operands.a, from.columns, from.rows, columns, RowNorm{}, staged.data(), nullptr);
    operands.a = staged.data();
  }
  const float scale = table.scale == kAbsent ? 1.0f : scalar(table.scale);
  launch_gemm<T, 1, 64, 3>(operands, RoundedEpilogue<T>{.out = to.data.data(), .stride = to.columns, .scale = scale},
                           nullptr);
  check_cuda(cudaDeviceSynchronize());
}

template <typename T>
void CudaNetworkWeights<T>::set_vectors(const std::vector<std::vector<float>>& vectors) {
  assert(std::ranges::all_of(fusion_.column_gains, [](VectorId gain) { return gain == kAbsent; }));
  load_vectors(vectors);
  use_vectors();
}

template <typename T>
void CudaNetworkWeights<T>::load_vectors(const std::vector<std::vector<float>>& vectors) {
  host_vectors_ = vectors;
  if (!policy_.vectors.is_exact())
    for (std::vector<float>& vector : host_vectors_)
      for (float& value : vector) value = policy_.vectors(value);
  std::vector<float> all(index(vectors_.count()));
  for (size_t v = 0; v < vector_places_.size(); ++v)
    std::ranges::copy(host_vectors_[v], all.begin() + vector_places_[v]);
  vectors_.copy(all);
}

// Makes what consists of vectors, or of vectors and matrices.
template <typename T>
void CudaNetworkWeights<T>::use_vectors() {
  for (size_t c = 0; c < fusion_.composites.size(); ++c) {
    const FusedWork& work = fusion_.composites[c].work;
    if (const auto* project = std::get_if<fused::Project>(&work)) upload_project(c, *project);
    const auto* add = std::get_if<fused::LinearAdd>(&work);
    if (add && scales_[c].count() > 0)
      upload(std::vector<float>(index(scales_[c].count()), scalar(add->scale)), scales_[c]);
  }
  for (size_t i = 0; i < fusion_.tables.size(); ++i) make_table(i);
  check_cuda(cudaDeviceSynchronize());
}

template <typename T>
void CudaNetworkWeights<T>::upload_project(size_t composite, const fused::Project& project) {
  const op::Attention& o = project.attention;
  const auto d = static_cast<float>(o.head_dim);
  CudaProjectVectors& to = project_vectors_[composite];
  const bool is_usual = o.scale == 1.0f / std::sqrt(d);
  std::vector<float> scales;
  float largest = 0;
  for (int64_t head = 0; head < o.heads; ++head) {
    const float gain = project.query_gain == kAbsent ? 1.0f : host_vector(project.query_gain).at(index(head));
    scales.push_back(is_usual ? gain * kLog2E / std::sqrt(d) : gain * kLog2E * o.scale);
    largest = std::max(largest, std::abs(scales.back()) * d);
  }
  upload(scales, to.query_scale);
  to.largest_score = project.norm_epsilon > 0 ? largest : std::numeric_limits<float>::infinity();
  if (!project.has_bias()) return;
  std::vector<float> bias(index(to.bias.count()));
  const int64_t padded = cuda_head_width(o.head_dim);
  const int64_t rotated = project.rotary == kAbsent ? 0 : network_->rotaries[index(project.rotary)].dims / 2;
  auto add = [&](const HeadSource& source, int64_t first, AxisMap map) {
    if (source.bias == kAbsent) return;
    const std::vector<float>& own = host_vector(source.bias);
    for (int64_t r = 0; r < source.rows; ++r) bias[index(first + map(r))] = own.at(index(source.first_row + r));
  };
  add(project.query, 0, head_map(o.head_dim, rotated));
  add(project.key, o.heads * padded, head_map(o.head_dim, rotated));
  add(project.value, (o.heads + o.kv_heads) * padded, head_map(o.head_dim));
  upload(bias, to.bias);
}

template <typename T>
const float* CudaNetworkWeights<T>::sum_scale(size_t composite) const {
  if (scales_[composite].count() > 0) return scales_[composite].data();
  return vector(std::get<fused::LinearAdd>(fusion_.composites[composite].work).scale);
}

template class CudaNetworkWeights<float>;
template class CudaNetworkWeights<__nv_bfloat16>;
template class CudaNetworkWeights<__half>;

DeviceArray<float2> make_cuda_rotary_table(const RotaryRule& rule, int64_t context) {
  const int stride = rotary_stride(static_cast<int>(rule.dims / 2));
  DeviceArray<float2> table(context * stride);
  if (!table.data()) return table;  // nothing rotates, or it is only counted
  const std::vector<double> frequencies = rule.frequencies(context);
  std::vector<float2> pairs;
  for (int64_t p = 0; p < context; ++p) {
    for (double frequency : frequencies) {
      const double angle = static_cast<double>(p) * frequency;
      pairs.push_back({static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))});
    }
    pairs.resize(index((p + 1) * stride), {1, 0});
  }
  table.copy(pairs);
  return table;
}

}  // namespace thimble
