// model_card.cpp: see model_card.h.
#include "quantizer/reports/model_card.h"

#include <fmt/format.h>

#include <filesystem>

#include "quantizer/console/console.h"
#include "quantizer/reports/report_member.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

constexpr uint64_t kMaxReportBytes = 64 << 20;

std::string name_of(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// One side of the evaluation, and how it was scored.
struct Score {
  double bits_per_byte;
  std::string scored;
};

Score score_of(const Json& evaluation, const std::string& side, const std::string& path) {
  const Json& of = report_member(evaluation, side, "'evaluation'", path);
  const std::string what = "'" + side + "'";
  const auto count = [&](const char* key) {
    return count_text(
        report_member(of, key, what, path, &Json::is_number_unsigned, "an integer of at least 0").get<uint64_t>());
  };
  return {report_member(of, "bits_per_byte", what, path, &Json::is_number, "a number"),
          fmt::format("{} of {} targets, {} bytes of text, context {}, stride {}", count("targets"),
                      count("total_targets"), count("text_bytes"), count("context"), count("stride"))};
}

std::string evaluation_text(const Json& report, uint64_t artifact_bytes, const std::string& path) {
  const std::string whole = "the report";
  const uint64_t original =
      report_member(report, "original_bytes", whole, path, &Json::is_number_unsigned, "an integer of at least 0");
  std::string text = fmt::format("| | bytes | bits per byte of text |\n|---|---|---|\n");
  if (!report.contains("evaluation"))
    return text + fmt::format("| original | {} | |\n| this artifact | {} | |\n\nBits per byte were not measured.\n",
                              count_text(original), count_text(artifact_bytes));
  const Json& evaluation = report.at("evaluation");
  const Score before = score_of(evaluation, "before", path), after = score_of(evaluation, "after", path);
  const Json& gap = report_member(evaluation, "gap_bits_per_byte", "'evaluation'", path, &Json::is_number, "a number");
  text += fmt::format("| original | {} | {:.6f} |\n| this artifact | {} | {:.6f} |\n\n", count_text(original),
                      before.bits_per_byte, count_text(artifact_bytes), after.bits_per_byte);
  text += fmt::format("The gap is {:+.6f}", gap.get<double>());
  if (const Json& error = report_member(evaluation, "gap_standard_error", "'evaluation'", path); error.is_number())
    text += fmt::format(" +- {:.6f} (standard error)", error.get<double>());
  return text + fmt::format(
                    ". Measured by `thimble quantize` with sliding windows, each byte of the text counted once: {}. "
                    "What is scored is the model decoded from the artifact.\n",
                    after.scored);
}

}  // namespace

std::string model_card(const std::string& folder, const ArtifactSummary& summary, const std::string& report_path) {
  uint64_t parameters = 0;
  for (const StoredTensorSummary& tensor : summary.tensors) parameters += tensor.elements;
  const Json provenance = parse_json(as_bytes_of(summary.provenance_json), "provenance");
  std::string text = fmt::format(
      "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- thimble\n---\n\n# {}\n\n"
      "{} parameters in an artifact of {} bytes, `model.thmb`: {:.3f} bits per parameter. Its weights are decoded when "
      "the model is loaded.\n\n",
      name_of(folder), count_text(parameters), count_text(summary.file_bytes),
      bits_each(summary.file_bytes, static_cast<int64_t>(parameters)));
  if (!report_path.empty()) {
    const Json report = parse_json(as_bytes_of(read_text_file(report_path, kMaxReportBytes)), report_path);
    check_report_of(report, summary.file_bytes, report_path);
    text += evaluation_text(report, summary.file_bytes, report_path) + "\n";
  } else {
    text += "Its loss against the original was not recorded here.\n\n";
  }
  text += fmt::format(
      "## Use\n\n```python\nimport thimble  # registers the quantization method \"thimble\"\n"
      "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
      "model = AutoModelForCausalLM.from_pretrained(\"{0}\")\ntokenizer = "
      "AutoTokenizer.from_pretrained(\"{0}\")\n```\n\n"
      "`model.thmb` alone is enough for `thimble eval`, `thimble generate` and `thimble.load`.\n\n"
      "## Made by\n\n```json\n{1}\n```\n",
      name_of(folder), provenance.dump(2));
  return text;
}

}  // namespace thimble
