// eval_command.cpp: `thimble eval`: bits per byte of one model, or of several side by side.
#include <fmt/format.h>

#include <algorithm>

#include "quantizer/checkpoints/finite_input.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/commands/commands.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "quantizer/pipeline/run_plan.h"
#include "quantizer/pipeline/score_model.h"

namespace thimble {
namespace {

struct EvalArguments {
  std::vector<std::string> models;
  std::string config;
  TokenSource source;
  bool check_finite = false, divergence = false;
};

Json to_json(const ScoredModel& scored, const ScoredModel& first) {
  Json json = to_json(scored.report);
  json["model"] = scored.path;
  json["file_bytes"] = scored.file_bytes;
  json["load_s"] = scored.load_seconds;
  json["first_token_s"] = scored.first_token_seconds;
  if (scored.memory) json["memory_plan"] = to_json(*scored.memory);
  if (scored.divergence) json["divergence"] = to_json(*scored.divergence);
  json.update(to_json(gap_between(first.report, scored.report)));
  return json;
}

// The same for each model of one family: told once.
std::vector<std::optional<std::string>> notes_of(const std::vector<ScoredModel>& all) {
  std::vector<std::optional<std::string>> notes;
  for (const ScoredModel& scored : all)
    if (std::ranges::find(notes, scored.note) == notes.end()) notes.push_back(scored.note);
  return notes;
}

std::string table_of(const std::vector<ScoredModel>& all, const std::string& device) {
  const bool has_divergence = std::ranges::any_of(all, [](const ScoredModel& m) { return m.divergence.has_value(); });
  std::vector<std::vector<std::string>> rows = {{"model", "bytes", "BPB", "gap", "+-", "seconds"}};
  if (has_divergence) rows[0].insert(rows[0].end(), {"KL, nats", "same top"});
  for (const ScoredModel& scored : all) {
    const BpbGap gap = gap_between(all[0].report, scored.report);
    rows.push_back({scored.path, bytes_text(scored.file_bytes), fmt::format("{:.6f}", scored.report.bits_per_byte()),
                    fmt::format("{:+.6f}", gap.bits_per_byte), standard_error_text(gap.standard_error),
                    fmt::format("{:.1f}", scored.report.seconds)});
    if (scored.divergence)
      rows.back().insert(rows.back().end(), {fmt::format("{:.6f}", scored.divergence->mean_nats),
                                             fmt::format("{:.2f} %", 100 * scored.divergence->same_top)});
    else if (has_divergence)
      rows.back().insert(rows.back().end(), {"-", "-"});
  }
  const BpbReport& report = all[0].report;
  return table_text(rows) +
         fmt::format("{}, {} of text, {}, on {}\n", scored_text(report), counted(report.text_bytes, "byte"),
                     counted(report.windows, "window"), device) +
         fmt::format("loaded {} in {:.3f} s; first scores {:.3f} s after the start\n", all[0].path, all[0].load_seconds,
                     all[0].first_token_seconds) +
         notes_text(notes_of(all));
}

}  // namespace

void add_eval_command(CommandLine& line) {
  auto options = std::make_shared<EvalArguments>();
  CLI::App* command = add_command(line, "eval", "Score checkpoints and artifacts in bits per byte",
                                  "thimble eval model.safetensors model.thmb --tokens val.bin --tokenizer sp.model");
  command->add_option("models", options->models, "Checkpoints or artifacts; gaps are against the first")->required();
  add_config_option(*command, options->config);
  options->source.add_to(*command, TokenSource::Need::kRequired, kCommonGroup);
  command->add_flag("--check-finite", options->check_finite,
                    "Name the first tensor or activation, and its place, that is NaN or infinite (exit code 4)");
  command->add_flag("--divergence", options->divergence,
                    "Also the Kullback-Leibler divergence of each model's predictions from the first model's, in nats "
                    "per token, and how often both find the same token the likeliest");
  set_collective_action(line, *command, [&line, options](Console& console) {
    options->source.find_tokenizer(options->models, TokenSource::Need::kRequired);
    const std::jthread warming = warm_up(line.common.device, DeviceWork::kPasses, line.ranks.local_rank());
    Tokenizer tokenizer = load_tokenizer(options->source.tokenizer);
    ByteTable bytes(tokenizer);
    TokenSource source = options->source;
    std::vector<ScoredModel> all;
    console.plan(eval_plan(options->models.size(), options->divergence));
    if (!options->config.empty() && std::ranges::all_of(options->models, is_artifact))
      throw UsageError("--config is for checkpoints: artifacts have their own");
    // What is no model is known before the first one is scored.
    for (const std::string& path : options->models)
      if (!is_artifact(path)) OpenedCheckpoint(path, options->config, Contents::kShapes);
    if (options->divergence && options->models.size() < 2)
      throw UsageError("--divergence is between models: name the original first, then others");
    std::optional<Device> device;
    std::optional<ReadyModel> first;  // kept for divergences
    for (const std::string& path : options->models) {
      if (options->check_finite) require_finite_file(path);
      // The config belongs to checkpoints; artifacts carry their own.
      LoadedModel loaded = load_model(path, is_artifact(path) ? "" : options->config);
      if (!device) device = open_device(line.common, line.ranks);  // begun meanwhile
      ReadyModel model =
          make_ready(std::move(loaded), source, tokenizer, *device, line.ranks, console, options->check_finite);
      all.push_back(score_model(model, source, bytes, console));
      source.context = all[0].report.context;  // gaps between models with different contexts would mean nothing
      if (!options->divergence) continue;
      if (first)
        all.back().divergence = divergence_of(*first, model, source, bytes, console);
      else
        first = std::move(model);
    }
    Json json = Json::array();
    for (const ScoredModel& scored : all) json.push_back(to_json(scored, all[0]));
    std::string name = device_text(*device, line.ranks);
    console.result(table_of(all, name),
                   Json{{"device", name}, {"evaluations", json}, {"notes", notes_json(notes_of(all))}});
  });
}

}  // namespace thimble
