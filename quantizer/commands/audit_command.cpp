// audit_command.cpp: `thimble audit`: is an evaluation of this model on this text what it claims to be?
#include "eval/audit/audit.h"

#include <fmt/format.h>

#include "quantizer/checkpoints/model_source.h"
#include "quantizer/commands/commands.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "quantizer/pipeline/run_plan.h"
#include "quantizer/pipeline/token_source.h"
#include "runtime/base/file.h"
#include "runtime/device/models.h"

namespace thimble {
namespace {

struct AuditArguments {
  std::string model, config, source_text;
  TokenSource source;
  int64_t samples = AuditOptions{}.samples;
};

void run_audit(const AuditArguments& options, const CommonOptions& common, Console& console) {
  console.plan(audit_plan());
  const std::jthread warming = warm_up(common.device, DeviceWork::kPasses);
  Tokenizer tokenizer = load_tokenizer(options.source.tokenizer);
  const RunnableModel model = load_model(options.model, options.config).model;
  const Device device = open_device(common);
  check_vocab_size(tokenizer, model.spec.vocabulary(), options.model);
  const int64_t context = options.source.context_for(model.spec, options.model);
  const std::vector<Token> tokens = options.source.load(tokenizer, model.spec.vocabulary());
  const std::unique_ptr<Scorer> scorer = make_scorer(model.weights, device, context);
  Evaluation evaluation = evaluate(*scorer, tokens, ByteTable(tokenizer),
                                   options.source.evaluation_options(model.spec, context), console.progress());

  const std::string& text_path = options.source.text.empty() ? options.source_text : options.source.text;
  std::optional<MappedFile> text;
  std::optional<SourceText> source;
  if (!text_path.empty()) {
    text.emplace(text_path);
    source = SourceText{as_text(text->bytes()), text_path};
  }
  AuditOptions audit_options;
  audit_options.samples = options.samples;
  audit_options.seed = common.seed;
  const AuditReport checks = audit(*scorer, tokens, tokenizer, evaluation, source, audit_options, console.progress());
  const std::optional<std::string> note = context_note(model.spec, context, evaluation.report.targets);
  Json json = to_json(checks);
  json["device"] = device.name();
  json["scored"] = scored_text(evaluation.report);
  json["notes"] = notes_json({note});
  console.result(fmt::format("{}{}, on {}\n{}", to_text(checks), scored_text(evaluation.report), device.name(),
                             notes_text({note})),
                 json);
  if (!checks.passed()) throw CheckError(options.model + ": the audit found a failing check");
}

}  // namespace

void add_audit_command(CommandLine& line) {
  auto options = std::make_shared<AuditArguments>();
  CLI::App* command =
      add_command(line, "audit", "Check that an evaluation is correct: coverage, bytes, causality, sums",
                  "thimble audit model.thmb --text val.txt --tokenizer sp.model --max-targets 4096");
  command->add_option("model", options->model, "Checkpoint or artifact")->required();
  add_config_option(*command, options->config);
  options->source.add_to(*command, TokenSource::Need::kRequired, kCommonGroup);
  add_file(*command, "--source-text", options->source_text,
           "The text that --tokens were made from, to check their bytes")
      ->excludes("--text");
  add_count(*command, "--samples", options->samples, "Random positions to probe", 0, 1 << 20)->capture_default_str();
  set_action(line, *command, [&line, options](Console& console) {
    options->source.find_tokenizer({&options->model, 1}, TokenSource::Need::kRequired);
    run_audit(*options, line.common, console);
  });
}

}  // namespace thimble
