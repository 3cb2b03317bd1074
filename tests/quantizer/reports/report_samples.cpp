// report_samples.cpp: see report_samples.h.
#include "tests/quantizer/reports/report_samples.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

namespace thimble::testing {

const std::string kHostileName = "</title><script>alert('x')</script>\" onload=\"alert(1)&amp;\x01\x7f\xff";

namespace {

struct SampleTensors {
  ArtifactSummary stored;
  ModelRate rate;
};

SampleTensors sample_tensors(int layers) {
  struct Kind {
    const char* name;
    int64_t rows, columns;
  };
  const Kind kinds[] = {{"attn.c_k", 256, 512},  {"attn.c_q", 512, 512}, {"attn.c_v", 256, 512},
                        {"attn.proj", 512, 512}, {"mlp.fc", 1536, 512},  {"mlp.proj", 512, 1536}};
  SampleTensors sample;
  auto add = [&](const std::string& name, const Shape& shape, const std::string& precision, double bytes) {
    StoredTensorSummary& tensor = sample.stored.tensors.emplace_back();
    tensor.name = name;
    tensor.shape = shape;
    tensor.precision = precision;
    tensor.elements = static_cast<uint64_t>(element_count(shape));
    tensor.coded = precision != "F16";
    tensor.stored_bytes = bytes;
    tensor.bits_per_weight = 8 * bytes / static_cast<double>(tensor.elements);
  };
  for (int layer = 0; layer < layers; ++layer)
    for (size_t k = 0; k < std::size(kinds); ++k) {
      if (layer == 2 && k == 2) continue;  // a layer without one of them
      const double bits = 3.1 + 0.8 * std::cos(0.23 * layer + static_cast<double>(k)) + 1.2 / (1 + layer);
      const double weights = static_cast<double>(kinds[k].rows * kinds[k].columns);
      const std::string name = fmt::format("blocks.{}.{}.weight", layer, kinds[k].name);
      add(name, {kinds[k].rows, kinds[k].columns}, "trellis256", weights * bits / 8);
      sample.rate.matrices[name].predicted_loss = weights * (1.1 + std::sin(0.31 * layer));
    }
  add("tok_emb.weight", {1024, 512}, "trellis256", 210000);
  sample.rate.matrices["tok_emb.weight"].predicted_loss = 0;
  add("blocks.0.attn." + std::string(180, 'x') + ".scale", {512}, "F16", 1024);
  add(kHostileName, {}, "F16", 2);
  return sample;
}

// Of a text of two equal blocks.
ScoredModel sample_score(double bits_per_byte, double standard_error) {
  constexpr int64_t kBytes = 1'000'000;
  ScoredModel scored;
  BpbReport& report = scored.report;
  report.targets = report.total_targets = 600'000;
  report.context = 2048;
  report.stride = 64;
  report.text_bytes = 2 * kBytes;
  for (double sign : {-1, 1}) {
    report.blocks.loss_nats.push_back((bits_per_byte + sign * standard_error) * kBytes * std::numbers::ln2);
    report.blocks.text_bytes.push_back(kBytes);
    report.loss_nats += report.blocks.loss_nats.back();
  }
  return scored;
}

}  // namespace

ReportRun sample_run() {
  ReportRun run;
  run.settings = {{"Options given", {{"checkpoint", "models/final_model.safetensors"}, {"--budget", "16000000"}}},
                  {"As resolved", {{"method", "slope"}, {"codec", "rans"}, {"distillation steps", "24"}}},
                  {"What the artifact says it was made with",
                   {{"calibration, length", "1024"}, {"calibration, sequences", "128"}, {"tool", kHostileName}}},
                  {"Nothing", {}}};
  run.stages = {{"open", 0.12, 120'000'000},      {"calibration text", 42.5, 612'000'000},
                {"Hessians", 31.25, 803'000'000}, {"solve", 95.6, 755'953'664},
                {"encode", 12.75, 640'000'000},   {"evaluation", 16.5, 512'000'000}};
  run.peak_bytes = 803'000'000;
  run.written = "thimble 0.1.0 on 2026-03-01 at 12:00 UTC";
  return run;
}

QuantizeReport sample_quantize_report(int layers) {
  QuantizeReport report;
  report.request.checkpoint = "models/" + std::string(120, 'm') + "/final_model.safetensors";
  report.request.output = "out/model.thmb";
  report.request.code_bytes = 60'000;
  report.request.budget_bytes = 16'000'000;
  QuantizeOutcome& outcome = report.outcome;
  outcome.parameters = 29'951'068;
  outcome.original_bytes = 59'958'344;
  outcome.artifact_bytes = 15'937'377;
  outcome.encoded = {{-10.1, 14'950'000}, {-10.42, 16'330'000}, {-10.29, 15'890'000}, {-10.2991, 15'931'000}};
  outcome.log2_c = -10.2991;
  outcome.work_note = "the work folder is full";
  SampleTensors tensors = sample_tensors(layers);
  outcome.stored = std::move(tensors.stored);
  outcome.rate = std::move(tensors.rate);
  report.scores = {sample_score(1.277708, 0), sample_score(1.278068, 0.000112)};
  return report;
}

std::string sample_quantize_page(int layers) { return quantize_page(sample_quantize_report(layers), sample_run()); }

SweepResults sample_sweep(int layers) {
  SweepResults results;
  results.checkpoint = "models/" + std::string(120, 'm') + "/final_model.safetensors";
  results.parameters = 29'951'068;
  results.original = OriginalScore{59'958'344, 1.277708, "all 600,000 targets, context 2048, stride 64", {}};
  const SampleTensors tensors = sample_tensors(layers);
  auto add = [&](const std::string& method, uint64_t bytes, double bits_per_byte) {
    SweepPoint point;
    point.method = method;
    point.budget_bytes = bytes + 1000;
    point.artifact_bytes = bytes;
    point.bits_per_byte = bits_per_byte;
    point.gap_standard_error = 0.0006;
    point.seconds = 41.5;
    if (method == "slope" || bytes > 12'000'000)
      point.tensors = report_tensors(tensors.stored, reported_matrices(tensors.rate));
    results.points.push_back(point);
  };
  add("slope", 8'395'411, 1.286756);
  add("slope", 11'143'144, 1.280085);
  add("slope", 15'937'377, 1.278068);
  add("trace", 11'149'000, 1.290121);
  add("trace", 13'538'000, 1.281644);
  SweepPoint failed;
  failed.method = "trace";
  failed.budget_bytes = 8'400'000;
  failed.failure = "the budget cannot be met: the smallest artifact takes 9,200,118 B, it may take 8,400,000 B";
  results.points.push_back(failed);
  results.references = {{"PyTorch, int5 and int6 with Brotli", 11'149'629, 1.287579},
                        {kHostileName, 9'000'000, 1.2865}};
  results.notes = {"gnuplot is not installed: no curve.svg and curve.png; curve.gp draws them"};
  return results;
}

}  // namespace thimble::testing
