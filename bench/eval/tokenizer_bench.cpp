// tokenizer_bench.cpp: how fast texts become tokens on one core, in CPU time, against the least that is promised.
//   tokenizer_bench TOKENIZER TEXT...     each text as one document; the best of three, each with empty caches
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "eval/tokenizers/tokenizer.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

constexpr double kLeastMegabytesPerSecond = 5;
constexpr int kRuns = 3;

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void run(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const MappedFile file(argv[i]);
    const std::string_view text = as_text(file.bytes());
    double best = 0;
    size_t tokens = 0;
    for (int repeat = 0; repeat < kRuns; ++repeat) {
      const Tokenizer tokenizer = Tokenizer::load(argv[1]);
      const double before = cpu_seconds();
      tokens = tokenizer.encode(text).size();
      best = std::max(best, static_cast<double>(text.size()) / 1e6 / std::max(cpu_seconds() - before, 1e-6));
    }
    fmt::print("{}: {} B, {} tokens, {:.1f} MB/s, {:.1f} times the least\n", argv[i], text.size(), tokens, best,
               best / kLeastMegabytesPerSecond);
  }
}

}  // namespace
}  // namespace thimble

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: tokenizer_bench TOKENIZER TEXT...\n", stderr);
    return 2;
  }
  try {
    thimble::run(argc, argv);
  } catch (const thimble::Error& error) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
