// tokenize_command.cpp: `thimble tokenize`: texts as token shards, which --tokens of the other commands takes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "eval/text/byte_table.h"
#include "eval/text/text_tokens.h"
#include "eval/text/token_shard.h"
#include "eval/tokenizers/tokenizer.h"
#include "quantizer/commands/commands.h"
#include "quantizer/console/quoted_name.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "quantizer/pipeline/token_source.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

constexpr size_t kMostShards = 1'000'000;  // names have six digits

struct TokenizeArguments {
  std::vector<std::string> texts;
  std::string output, tokenizer;
  std::optional<int64_t> shard_tokens;
};

struct Shard {
  std::string path;
  std::span<const Token> tokens;
};

// OUTPUT itself for a single shard; of several, "val_000002.bin" for number 2 of "val.bin".
std::string numbered(const std::string& output, size_t number) {
  const std::filesystem::path path(output);
  return (path.parent_path() / fmt::format("{}_{:06}{}", path.stem().string(), number, path.extension().string()))
      .string();
}

// Shards in the order in which a pattern of --tokens finds them, all but the last of one size.
std::vector<Shard> cut(const TokenizeArguments& options, std::span<const Token> tokens) {
  if (!options.shard_tokens) return {{options.output, tokens}};
  const auto most = static_cast<size_t>(*options.shard_tokens);
  std::vector<Shard> shards;
  for (size_t begin = 0; begin < tokens.size() || shards.empty(); begin += most)
    shards.push_back(
        {numbered(options.output, shards.size()), tokens.subspan(begin, std::min(most, tokens.size() - begin))});
  if (shards.size() > kMostShards)
    throw UsageError(fmt::format("--shard-tokens {} makes {} of {}, at most {} are allowed", most,
                                 counted(shards.size(), "shard"), counted(tokens.size(), "token"),
                                 count_text(kMostShards)));
  return shards;
}

void check_files(const TokenizeArguments& options, const std::vector<Shard>& shards) {
  FileRoles roles;
  for (const std::string& text : options.texts) roles.input("the text", text);
  roles.input("the --tokenizer", options.tokenizer);
  for (const Shard& shard : shards) roles.output("--output", shard.path);
  roles.check();
}

// A pattern that finds these shards would find one more.
void refuse_older_shard(const TokenizeArguments& options, size_t shards) {
  const std::string next = numbered(options.output, shards);
  if (options.shard_tokens && file_exists(next))
    throw UsageError(fmt::format("{} is there, of an earlier run: it would be read with the {} of this one",
                                 quoted_name(next), counted(shards, "shard")));
}

Json run_tokenize(const TokenizeArguments& options) {
  check_files(options, cut(options, {}));  // what can be known before any work
  const Tokenizer tokenizer = load_tokenizer(options.tokenizer);
  std::vector<Token> tokens;
  uint64_t documents = 0, text_bytes = 0;
  for (const std::string& path : options.texts) {
    const MappedFile file(path);
    const std::string_view text = as_text(file.bytes());
    const std::vector<Token> part = tokens_of_text(tokenizer, text, path);
    tokens.insert(tokens.end(), part.begin(), part.end());
    documents += split_documents(text).size();
    text_bytes += text.size();
  }
  if (tokens.empty()) throw FormatError(options.texts.front(), "has no text to tokenize");
  const std::vector<Shard> shards = cut(options, tokens);
  check_files(options, shards);
  refuse_older_shard(options, shards.size());
  Json written = Json::array();
  for (const Shard& shard : shards) {
    write_shard(shard.path, shard.tokens, tokenizer.vocab_size());
    written.push_back({{"path", shard.path}, {"tokens", shard.tokens.size()}});
  }
  return {{"shards", written},
          {"tokens", tokens.size()},
          {"token_bytes", shard_format(tokenizer.vocab_size()).token_bytes},
          {"vocabulary", tokenizer.vocab_size()},
          {"documents", documents},
          {"text_bytes", text_bytes},
          {"counted_bytes", ByteTable(tokenizer).bytes_of_targets(tokens)}};
}

std::string text_of(const Json& result) {
  const auto& shards = result.at("shards");
  const auto& first = shards.front().at("path").get_ref<const std::string&>();
  const auto& last = shards.back().at("path").get_ref<const std::string&>();
  const auto tokens = result.at("tokens").get<int64_t>(), counted_bytes = result.at("counted_bytes").get<int64_t>();
  std::vector<std::pair<std::string, std::string>> facts = {
      {"documents", count_text(result.at("documents").get<int64_t>())},
      {"text", bytes_text(result.at("text_bytes").get<uint64_t>())},
      {"counted", fmt::format("{}: what the tokens stand for", bytes_text(static_cast<uint64_t>(counted_bytes)))},
      {"tokens", fmt::format("{} of {} B", count_text(tokens), result.at("token_bytes").get<int>())}};
  facts.emplace_back("bytes per token",
                     fmt::format("{:.3f}", static_cast<double>(counted_bytes) / static_cast<double>(tokens)));
  facts.emplace_back("written", shards.size() == 1
                                    ? first
                                    : fmt::format("{} to {}, {}", first, last, counted(shards.size(), "shard")));
  return facts_text(facts);
}

}  // namespace

void add_tokenize_command(CommandLine& line) {
  auto options = std::make_shared<TokenizeArguments>();
  CLI::App* command = add_command(line, "tokenize", "Write texts as token shards, for --tokens of other commands",
                                  "thimble tokenize val.txt -o val.bin --tokenizer model/tokenizer.json");
  command->add_option("text", options->texts, "UTF-8 text files, one after another; lines <|doc|> separate documents")
      ->required();
  add_file(*command, "-o,--output", options->output, "Shard to write")->required();
  add_tokenizer(*command, options->tokenizer, "tokenizer.json or SentencePiece model, or a folder with one")
      ->required();
  add_count(*command, "--shard-tokens", options->shard_tokens,
            "Most tokens of a shard; shards are then numbered: val_000000.bin, val_000001.bin, ...", 1,
            std::numeric_limits<int32_t>::max());
  set_action(line, *command, [options](Console& console) {
    const Json result = run_tokenize(*options);
    console.result(text_of(result), result);
  });
}

}  // namespace thimble
