// report_samples.cpp: see report_samples.h.
#include "tests/quantizer/reports/report_samples.h"

#include <fmt/format.h>

#include <cmath>

namespace thimble::testing {

const std::string kHostileName = "</title><script>alert('x')</script>\" onload=\"alert(1)&amp;\x01\x7f\xff";

std::vector<ReportTensor> sample_tensors(int layers) {
  struct Kind {
    const char* name;
    int64_t rows, columns;
  };
  const Kind kinds[] = {{"attn.c_k", 256, 512},  {"attn.c_q", 512, 512}, {"attn.c_v", 256, 512},
                        {"attn.proj", 512, 512}, {"mlp.fc", 1536, 512},  {"mlp.proj", 512, 1536}};
  std::vector<ReportTensor> tensors;
  double loss = 0;
  for (int layer = 0; layer < layers; ++layer)
    for (size_t k = 0; k < std::size(kinds); ++k) {
      if (layer == 2 && k == 2) continue;  // a layer without one of them
      const double bits = 3.1 + 0.8 * std::cos(0.23 * layer + static_cast<double>(k)) + 1.2 / (1 + layer);
      const double weights = static_cast<double>(kinds[k].rows * kinds[k].columns);
      ReportTensor tensor{fmt::format("blocks.{}.{}.weight", layer, kinds[k].name),
                          fmt::format("[{}, {}]", kinds[k].rows, kinds[k].columns),
                          "trellis256",
                          weights * bits / 8,
                          bits,
                          true,
                          weights * (1.1 + std::sin(0.31 * layer))};
      loss += *tensor.loss_share;
      tensors.push_back(tensor);
    }
  for (ReportTensor& tensor : tensors) *tensor.loss_share /= loss;
  tensors.push_back({"tok_emb.weight", "[1024, 512]", "trellis256", 210000, 3.2, true, 0.0});
  tensors.push_back({"blocks.0.attn." + std::string(180, 'x') + ".scale", "[512]", "F16", 1024, 16, false, {}});
  tensors.push_back({kHostileName, "[]", "F16", 2, 16, false, {}});
  return tensors;
}

namespace {

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

}  // namespace

QuantizePage sample_quantize_page(int layers) {
  QuantizePage page;
  page.checkpoint = "models/" + std::string(120, 'm') + "/final_model.safetensors";
  page.artifact = "out/model.thmb";
  page.precision = "trellis256, log2 of the step -10.2991";
  page.parameters = 29'951'068;
  page.original_bytes = 59'958'344;
  page.artifact_bytes = 15'937'377;
  page.code_bytes = 60'000;
  page.budget_bytes = 16'000'000;
  page.scores = ReportScores{1.277708, 1.278068, 0.000112, "all 600,000 targets, context 2048, stride 64"};
  page.encoded = {{-10.1, 14'950'000}, {-10.42, 16'330'000}, {-10.29, 15'890'000}, {-10.2991, 15'931'000}};
  page.log2_c = -10.2991;
  page.notes = {"blocks.0.mlp.fc.weight: 3 input columns were never active; their codes are 0"};
  page.tensors = sample_tensors(layers);
  page.run = sample_run();
  return page;
}

SweepPage sample_sweep_page(int layers) {
  SweepPage page;
  SweepResults& results = page.results;
  results.checkpoint = "models/" + std::string(120, 'm') + "/final_model.safetensors";
  results.parameters = 29'951'068;
  results.original = OriginalScore{59'958'344, 1.277708, "all 600,000 targets, context 2048, stride 64", {}};
  auto add = [&](const std::string& method, uint64_t bytes, double bits_per_byte) {
    SweepPoint point;
    point.method = method;
    point.budget_bytes = bytes + 1000;
    point.artifact_bytes = bytes;
    point.bits_per_byte = bits_per_byte;
    point.gap_standard_error = 0.0006;
    point.seconds = 41.5;
    results.points.push_back(point);
    if (method == "slope" || bytes > 12'000'000) page.tensors[{method, point.budget_bytes}] = sample_tensors(layers);
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
  page.notes = {"gnuplot is not installed: no curve.svg and curve.png; curve.gp draws them"};
  page.run = sample_run();
  return page;
}

}  // namespace thimble::testing
