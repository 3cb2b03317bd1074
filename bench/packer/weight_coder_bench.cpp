// weight_coder_bench.cpp: bytes and seconds of codecs on the same codes, as ratios to the first one.
//   weight_coder_bench [MODEL.thmb [THREADS [CODEC...]]]     the codes of an artifact; without one, random codes, a
//                                                            third of them with a trellis of 3 bits and of 8
// Default: one thread per core; brotli zstd xz rans.
// Codes only: no scales, no raw tensors. Each codec in the layouts that the packer tries with it.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "packer/artifact.h"
#include "packer/container/artifact_reader.h"
#include "packer/container/section_content.h"
#include "packer/layout/stored_model.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/base/parallel.h"
#include "tests/packer/layout/sample_codes.h"

namespace thimble {
namespace {

// Shapes of one layer of a 30M-parameter golf-gpt, at about 3 bits a code.
QuantizedModel random_codes() {
  QuantizedModel model;
  for (auto [name, rows, columns] : {std::tuple{"a", 512, 512}, {"b", 256, 512}, {"c", 1792, 512}, {"d", 512, 1792}}) {
    const SampleCodes sample = normal_codes(static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), 1.8, 0.2, 0.3);
    RowScaledCodes coded;
    coded.max_code = kMaxCode;
    coded.row_scales.assign(sample.rows, 0x3c00);
    for (int32_t code : sample.codes) coded.codes.push_back(static_cast<int8_t>(std::clamp(code, -kMaxCode, kMaxCode)));
    model.tensors.push_back({std::string("scaled.") + name, {rows, columns}, std::move(coded)});
    for (int bits : {3, kMaxTrellisBits}) {
      SteppedCodes stepped{bits, {}, std::vector<int16_t>(sample.rows), std::vector<int16_t>(sample.columns)};
      stepped.codes = trellis_codes(sample.rows, sample.columns, 0.9, 0.2, 0.3, bits).codes;
      model.tensors.push_back({fmt::format("stepped{}.{}", bits, name), {rows, columns}, std::move(stepped)});
    }
  }
  std::ranges::sort(model.tensors, {}, &QuantizedTensor::name);
  return model;
}

struct CodeSection {
  ContentShape shape;
  ByteVector content;
};

std::vector<CodeSection> code_sections(const QuantizedModel& model) {
  std::vector<CodeSection> sections;
  const ArtifactPlan plan = plan_artifact(model, "codes");
  for (size_t i = 0; i < plan.sections.size(); ++i)
    if (const ContentShape& shape = plan.sections[i].shape; shape.kind == SectionKind::kCodes)
      sections.push_back({shape, gather_content(model, plan, i)});
  return sections;
}

// Seconds that body(i) takes for all i.
template <typename Body>
double seconds(size_t count, const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  parallel_for(static_cast<int64_t>(count), [&](int64_t i) { body(static_cast<size_t>(i)); });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Measured {
  uint64_t bytes = 0;
  double encode_seconds = 0;
  double decode_seconds = 0;
};

Measured measure(const std::vector<CodeSection>& sections, const EncodeOptions& options) {
  Measured measured;
  SectionCache cache;
  SilentProgress progress;
  PackedSections packed;
  std::vector<ContentShape> shapes;
  for (const CodeSection& section : sections) shapes.push_back(section.shape);
  measured.encode_seconds = seconds(1, [&](size_t) {
    const SectionContents contents{[&](size_t i) { return sections[i].content; },
                                   [&](size_t i) { return xxh3(sections[i].content); }};
    packed = cache.pack(shapes, contents, options, progress);
  });
  std::vector<ByteVector> decoded(sections.size());
  measured.decode_seconds = seconds(sections.size(), [&](size_t i) {
    ByteVector raw = decompress_section({packed[i]->entry, packed[i]->stored}, sections[i].shape, "bench");
    decoded[i] = undo_layout(packed[i]->entry.layout, sections[i].shape, raw, "bench");
  });
  for (size_t i = 0; i < sections.size(); ++i) {
    if (decoded[i] != sections[i].content) throw FormatError("bench", "decoding gives other codes");
    measured.bytes += packed[i]->stored.size();
  }
  return measured;
}

void run(const std::string& path, const std::vector<std::string>& codecs) {
  const QuantizedModel model = path.empty() ? random_codes() : decode_artifact(MappedFile(path).bytes(), path);
  const std::vector<CodeSection> sections = code_sections(model);
  double codes = 0;
  for (const CodeSection& section : sections) codes += static_cast<double>(section.shape.elements());

  fmt::print("{:.0f} codes in {} sections, {} threads\n", codes, sections.size(), thread_count());
  fmt::print("{:8} {:>12} {:>10} {:>9} {:>10} {:>12} {:>12}\n", "codec", "bytes", "bits/code", "ratio", "encode s",
             "encode MB/s", "decode MB/s");
  std::optional<double> first_bytes;
  for (const std::string& name : codecs) {
    const Measured measured = measure(sections, encode_options_from(name));
    const auto bytes = static_cast<double>(measured.bytes);
    if (!first_bytes) first_bytes = bytes;
    fmt::print("{:8} {:>12} {:>10.4f} {:>9.4f} {:>10.2f} {:>12.1f} {:>12.1f}\n", name, measured.bytes,
               8 * bytes / codes, bytes / *first_bytes, measured.encode_seconds, codes / 1e6 / measured.encode_seconds,
               codes / 1e6 / measured.decode_seconds);
  }
}

}  // namespace
}  // namespace thimble

int main(int argument_count, char** arguments) {
  try {
    const thimble::ThreadLimit limit(argument_count > 2 ? std::atoi(arguments[2]) : 0);
    std::vector<std::string> codecs = {"brotli", "zstd", "xz", "rans"};
    if (argument_count > 3) codecs.assign(arguments + 3, arguments + argument_count);
    thimble::run(argument_count > 1 ? arguments[1] : "", codecs);
  } catch (const std::exception& error) {
    std::fputs(("weight_coder_bench: " + std::string(error.what()) + "\n").c_str(), stderr);
    return 1;
  }
  return 0;
}
