// generate_command.cpp: `thimble generate`: text sampled from a model.
#include "eval/text/text_tokens.h"
#include "eval/tokenizers/tokenizer.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/commands/commands.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "quantizer/pipeline/token_source.h"
#include "runtime/cuda/cuda_models.h"
#include "runtime/device/models.h"

namespace thimble {
namespace {

struct GenerateArguments {
  std::string model, config, tokenizer, prompt;
  int64_t length = 200;
  double temperature = 0.8;
};

Json run_generate(const GenerateArguments& options, const CommonOptions& common, Console& console) {
  const std::jthread warming = warm_up(common.device, DeviceWork::kPasses);
  Tokenizer tokenizer = load_tokenizer(options.tokenizer);
  const RunnableModel model = load_model(options.model, options.config).model;
  const Device device = open_device(common);
  check_vocab_size(tokenizer, model.spec.vocabulary(), options.model);
  std::vector<Token> tokens = {document_start_token(tokenizer)};
  for (Token token : tokenizer.encode(options.prompt)) tokens.push_back(token);
  check_tokens(tokenizer, tokens, model.spec.vocabulary(), "--prompt");
  int64_t context = static_cast<int64_t>(tokens.size()) + options.length;
  check_context(model.spec, context, options.model);
  Json memory;
  if (device.is_cuda) {
    MemoryPlan plan = plan_text(model.spec.network, device.numerics, context, static_cast<int64_t>(tokens.size()),
                                usable_memory(device));
    console.note(plan.text());
    memory = to_json(plan);
  }
  std::vector<Token> text(tokens.begin() + 1, tokens.end());
  const TextOptions sampling{options.length, options.temperature, common.seed};
  make_generator(model.weights, device, context, /*sequences=*/1)->text(tokens, sampling, [&](Token token) {
    // A control token ends the document.
    if (tokenizer.kind(token) == PieceKind::kBoundary) return false;
    text.push_back(token);
    return true;
  });
  Json result = {{"text", tokenizer.decode(text)},
                 {"tokens", text},
                 {"seed", common.seed},
                 {"temperature", options.temperature},
                 {"device", device.name()}};
  if (!memory.is_null()) result["memory_plan"] = memory;
  return result;
}

}  // namespace

void add_generate_command(CommandLine& line) {
  auto options = std::make_shared<GenerateArguments>();
  CLI::App* command = add_command(line, "generate", "Sample text from a checkpoint or an artifact",
                                  "thimble generate model.thmb --tokenizer sp.model --prompt \"The sea\"");
  command->add_option("model", options->model, "Checkpoint or artifact")->required();
  add_config_option(*command, options->config);
  add_tokenizer(*command, options->tokenizer,
                "tokenizer.json or SentencePiece model, or a folder with one (required; default: the one in the "
                "model's folder or GGUF file)");
  command->add_option("--prompt", options->prompt, "Text to continue");
  add_count(*command, "--length", options->length, "Tokens to add, at most", 1, 1 << 20)->capture_default_str();
  command->add_option("--temperature", options->temperature, "Sampling temperature; 0 takes the likeliest token")
      ->check(finite_number(0, 100))
      ->type_name("X")
      ->capture_default_str();
  set_action(line, *command, [&line, options](Console& console) {
    if (options->tokenizer.empty()) options->tokenizer = tokenizer_of_models({&options->model, 1}, /*required=*/true);
    Json result = run_generate(*options, line.common, console);
    console.result(result.at("text").get<std::string>() + "\n", result);
  });
}

}  // namespace thimble
