// loader_script.cpp: see loader_script.h.
#include "quantizer/checkpoints/loader_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "packer/container/artifact_reader.h"
#include "quantizer/checkpoints/loader_templates.h"
#include "runtime/base/error.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

// The first ratio and the decay of the weight coder's densities (docs/reference/weight_coder.md), by shape.
constexpr const char* kShapes[] = {"(1072693760,)*2", "(1056461846,1073098699)", "(1040443749,1073470979)",
                                   "(1027321989,1073741824)"};
constexpr int64_t kStripe = 1024;

using Constants = std::vector<std::pair<std::string, std::string>>;

[[noreturn]] void refuse_artifact(const std::string& path, const std::string& found, const std::string& allowed) {
  throw UsageError(fmt::format("{}: no loader for this artifact: {}, {}", path, found, allowed));
}

struct Matrices {
  int trellis_bits = 0;
  size_t count = 0;
};

Matrices check_matrices(const OpenArtifact& artifact, const std::string& path) {
  Matrices matrices;
  for (const TensorEntry& tensor : artifact.plan.header.tensors) {
    if (!tensor.coded()) continue;
    const std::string object = "tensor '" + tensor.name + "' ";
    if (tensor.encoding != Encoding::kStepped || tensor.trellis_bits == 0)
      refuse_artifact(path, object + "is stored as " + precision_name(tensor),
                      "only trellises are read (quantize --method slope)");
    if (matrices.count > 0 && matrices.trellis_bits != tensor.trellis_bits)
      refuse_artifact(path, object + "is stored as " + precision_name(tensor), "all must have one trellis");
    const auto columns = static_cast<int64_t>(tensor.columns());
    const int64_t stripes = (columns + kStripe - 1) / kStripe;
    if (tensor.elements() == 0 || columns % stripes != 0)
      refuse_artifact(path, object + fmt::format("has {} columns", columns), "stripes of equal width are needed");
    if (tensor.shape.size() != 2)
      refuse_artifact(path, object + fmt::format("has {} dimensions", tensor.shape.size()), "matrices have two");
    matrices.trellis_bits = tensor.trellis_bits;
    matrices.count += 1;
  }
  return matrices;
}

// The element type of the tensors without codes, as numpy and torch have it, and its bytes.
std::pair<std::string, int> raw_type(const OpenArtifact& artifact, const std::string& path) {
  std::set<DType> types;
  for (const TensorEntry& tensor : artifact.plan.header.tensors)
    if (!tensor.coded()) types.insert(tensor.dtype);
  if (types == std::set{DType::kF16}) return {"half", 2};
  if (types == std::set{DType::kF32}) return {"float32", 4};
  refuse_artifact(path, "its tensors without codes have other element types", "all must be F16, or all F32");
}

// What turns planes of bytes into the bytes of elements.
std::string without_planes(int bytes, LayoutId layout) {
  return layout == LayoutId::kPlain ? "" : fmt::format(".reshape({},-1).T.ravel()", bytes);
}

Constants constants_of(const OpenArtifact& artifact, const std::string& path) {
  const Matrices matrices = check_matrices(artifact, path);
  const std::vector<StoredSection>& sections = artifact.sections;
  if (matrices.count == 0 || sections.size() != matrices.count + 3 || sections.size() > 255)
    refuse_artifact(
        path, fmt::format("{} sections for {} matrices", sections.size(), matrices.count),
        "the header, one for each matrix, of at most 4 Mi elements, one of steps and one of other tensors are read");
  std::vector<uint64_t> offsets = {32 + 20 * sections.size()};
  for (const StoredSection& section : sections) offsets.push_back(offsets.back() + section.stored.size());

  int shapes = 0;
  for (size_t i = 1; i <= matrices.count; ++i) {
    if (sections[i].entry.codec != CodecId::kRans)
      refuse_artifact(
          path, fmt::format("the codes of section {} are stored by codec {}", i, codec_name(sections[i].entry.codec)),
          "only those of the weight coder are read (quantize --codec rans)");
    shapes = std::max(shapes, 1 + (static_cast<int>(sections[i].stored[0]) & 15));
  }
  const StoredSection &header = sections.front(), &scales = sections[sections.size() - 2], &raw = sections.back();
  const CodecId codec = header.entry.codec;
  if (scales.entry.codec != codec || raw.entry.codec != codec)
    refuse_artifact(path, "its other sections are stored by several codecs", "one must do: --portable makes it none");
  static const std::map<CodecId, std::pair<const char*, const char*>> kDecompress = {
      {CodecId::kNone, {"bytes(", ""}},
      {CodecId::kXz, {"lzma.decompress(", ",3,None,[{'id':33}]"}},
      {CodecId::kBrotli, {"brotli.decompress(", ""}}};
  if (!kDecompress.contains(codec))
    refuse_artifact(path, fmt::format("its other sections are stored by codec {}", codec_name(codec)),
                    "none, xz and brotli are read");
  std::string table = kShapes[0];
  for (int i = 1; i < std::max(2, shapes); ++i) table += std::string(",") + kShapes[i];
  const auto [type, bytes] = raw_type(artifact, path);
  const Trellis trellis(matrices.trellis_bits);
  const auto number = [](auto value) { return fmt::format("{}", value); };
  return {{".SCALE_PLANES", without_planes(2, scales.entry.layout)},
          {".RAW_PLANES", without_planes(bytes, raw.entry.layout)},
          {"RAW_TYPE", type},
          {"DECOMPRESS(", kDecompress.at(codec).first},
          {",ARGUMENTS", kDecompress.at(codec).second},
          {"lzma,", codec == CodecId::kXz       ? "lzma,"
                    : codec == CodecId::kBrotli ? "brotli,"
                                                : ""},
          {"SHAPES", "(" + table + ")"},
          {"FEEDBACK", number(trellis.next(1, 0))},
          {"INPUT", number(trellis.next(0, 1))},
          {"HEADER", number(offsets[0])},
          {"SCALES", number(offsets[sections.size() - 2])},
          {"CODES", number(offsets[1])},
          {"RAW", number(offsets[sections.size() - 1])},
          {"END", number(offsets.back())}};
}

}  // namespace

std::string loader_script(Bytes file, const std::string& path, ArrayLibrary library) {
  std::string text = library == ArrayLibrary::kTorch ? kTorchLoader : kNumpyLoader;
  for (const auto& [name, value] : constants_of(open_artifact(file, path), path))
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += value.size())
      text.replace(at, name.size(), value);
  return text;
}

uint64_t most_loader_bytes() {
  constexpr uint64_t kMostConstants = 300;  // more than the longest ones take beyond their names
  return std::max(std::string_view(kNumpyLoader).size(), std::string_view(kTorchLoader).size()) + kMostConstants;
}

}  // namespace thimble
