// model_rate.cpp: see model_rate.h.
#include "quantizer/pipeline/model_rate.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gptq/slope/matrix_loss.h"
#include "gptq/trace/plan.h"
#include "quantizer/console/console.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// Of H in float64.
uint64_t square_bytes(const MatrixLoss& loss) {
  return loss.hessian ? static_cast<uint64_t>(loss.hessian->size() * loss.hessian->size()) * sizeof(double) : 0;
}

std::vector<std::string> row_of(const std::string& name, const MatrixRate& rate, double total_loss) {
  return {name, fmt::format("{:.3f}", rate.bits_per_weight()),
          fmt::format("{:.3f}", *rate.bound_bits / static_cast<double>(rate.weights)),
          fmt::format("{:.3f}", rate.distance()),
          fmt::format("{:.2f} %", total_loss > 0 ? 100 * rate.predicted_loss / total_loss : 0)};
}

Json to_json(const MatrixRate& rate) {
  Json json = {{"weights", rate.weights}, {"predicted_loss", rate.predicted_loss}};
  if (rate.weights > 0) json["bits_per_weight"] = rate.bits_per_weight();
  if (rate.weights > 0 && rate.bound_bits) {
    json["bound_bits_per_weight"] = *rate.bound_bits / static_cast<double>(rate.weights);
    json["distance_bits_per_weight"] = rate.distance();
  }
  return json;
}

}  // namespace

// Besides the codes and the artifact.
uint64_t RateMeter::working_bytes() const {
  uint64_t model = 0;
  for (const auto& [name, tensor] : tensors_) model += 2 * static_cast<uint64_t>(element_count(tensor.shape));
  return working_memory(device_.host_memory_bytes, model);
}

void RateMeter::find_spectra(Progress& progress) {
  // Layers that read the same input share a Hessian, and its spectrum.
  std::map<const void*, std::vector<const std::string*>> groups;
  for (const auto& [name, loss] : losses_)
    groups[loss.hessian ? static_cast<const void*>(loss.hessian.get()) : &loss].push_back(&name);
  std::vector<const std::vector<const std::string*>*> order;
  for (const auto& [hessian, names] : groups) order.push_back(&names);
  std::vector<std::vector<double>> spectra(order.size());
  progress.begin("eigenvalues of Hessians", static_cast<int64_t>(order.size()), "Hessians");
  std::vector<uint64_t> bytes;  // H and what becomes of it
  for (const auto* names : order) bytes.push_back(2 * square_bytes(losses_.at(*names->front())));
  parallel_within(bytes, working_bytes(), [&](int64_t i) {
    const std::string& name = *order[static_cast<size_t>(i)]->front();
    spectra[static_cast<size_t>(i)] = hessian_spectrum(losses_.at(name), name);
    progress.advance(1);
  });
  progress.end();
  for (size_t i = 0; i < order.size(); ++i)
    for (const std::string* name : *order[i])
      sources_[*name] = gaussian_source(losses_.at(*name), finite_matrix(*name, tensors_.at(*name)), spectra[i]);
}

ModelRate RateMeter::measure(const QuantizedModel& model, const ArtifactSummary& artifact, bool with_bound,
                             Progress& progress) {
  if (with_bound && sources_.empty()) find_spectra(progress);
  std::map<std::string, double> stored_bytes;
  for (const StoredTensorSummary& tensor : artifact.tensors) stored_bytes[tensor.name] = tensor.stored_bytes;
  std::vector<const QuantizedTensor*> coded;
  for (const QuantizedTensor& tensor : model.tensors)
    if (losses_.contains(tensor.name) && !std::holds_alternative<RawTensor>(tensor.data)) coded.push_back(&tensor);

  std::vector<MatrixRate> rates(coded.size());
  std::vector<uint64_t> bytes;  // H, and the matrix afterwards: before, it lies where the checkpoint does
  for (const QuantizedTensor* tensor : coded)
    bytes.push_back(square_bytes(losses_.at(tensor->name)) +
                    sizeof(int16_t) * static_cast<uint64_t>(element_count(tensor->shape)));
  progress.begin("measuring losses", static_cast<int64_t>(coded.size()), "matrices");
  std::unique_ptr<LossMeter> on_device;
  std::mutex one_at_a_time;  // on the device, while others get ready
  if (device_.is_cuda) on_device = make_cuda_loss_meter({device_.ordinals[0], device_.memory_limit_bytes});
  const auto measure_one = [&](int64_t i) {
    const QuantizedTensor& tensor = *coded[static_cast<size_t>(i)];
    MatrixRate& rate = rates[static_cast<size_t>(i)];
    const StoredMatrix weights(tensors_.at(tensor.name), tensor.shape.at(0), tensor.shape.at(1), nullptr);
    rate.weights = weights.rows() * weights.cols();
    const MatrixLoss& loss = losses_.at(tensor.name);
    const StoredMatrix quantized = stored_matrix(tensor);
    std::optional<double> measured;
    if (on_device) {
      const std::scoped_lock lock(one_at_a_time);
      measured = on_device->measure(loss, weights, quantized);
    }
    rate.predicted_loss = measured ? *measured : predicted_loss(loss, weights, quantized);
    rate.stored_bits = 8 * stored_bytes.at(tensor.name);
    if (with_bound) rate.bound_bits = rate_bound_bits({&sources_.at(tensor.name), 1}, rate.predicted_loss);
    progress.advance(1);
  };
  parallel_within(bytes, working_bytes(), measure_one);
  progress.end();

  ModelRate result;
  std::vector<GaussianSource> measured;
  for (size_t i = 0; i < coded.size(); ++i) {
    result.total.weights += rates[i].weights;
    result.total.predicted_loss += rates[i].predicted_loss;
    result.total.stored_bits += rates[i].stored_bits;
    if (with_bound) measured.push_back(sources_.at(coded[i]->name));
    result.matrices.emplace(coded[i]->name, rates[i]);
  }
  if (with_bound) result.total.bound_bits = rate_bound_bits(measured, result.total.predicted_loss);
  return result;
}

Json to_json(const ModelRate& rate, bool in_nats) {
  Json matrices = Json::array();
  for (const auto& [name, matrix] : rate.matrices) {
    Json json = to_json(matrix);
    json["name"] = name;
    matrices.push_back(std::move(json));
  }
  return {{"loss_unit", in_nats ? "nats per token" : "half the squared error of outputs per token"},
          {"matrices", matrices},
          {"total", to_json(rate.total)}};
}

std::string to_text(const ModelRate& rate) {
  if (rate.total.weights == 0) return "no matrix has both codes and a known loss: no rate-distortion bound\n";
  std::vector<std::vector<std::string>> rows = {{"matrix", "bits/weight", "bound", "distance", "loss share"}};
  for (const auto& [name, matrix] : rate.matrices)
    if (matrix.weights > 0) rows.push_back(row_of(name, matrix, rate.total.predicted_loss));
  rows.push_back(row_of("total", rate.total, rate.total.predicted_loss));
  return table_text(rows);
}

}  // namespace thimble
