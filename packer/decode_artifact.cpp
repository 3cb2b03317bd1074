// decode_artifact.cpp: opens the sections of a file in parallel and rebuilds the model.
#include "packer/artifact.h"
#include "packer/artifact_reader.h"
#include "packer/section_content.h"
#include "runtime/parallel.h"

namespace thimble {
namespace {

// The tensors without their contents, with room reserved for them.
QuantizedModel empty_model(const ArtifactHeader& header) {
  QuantizedModel model{header.config_json, header.provenance_json, header.banked, {}};
  for (const TensorEntry& entry : header.tensors) {
    QuantizedTensor tensor{entry.name, entry.shape, {}};
    if (entry.coded()) {
      RowScaledCodes& coded = tensor.data.emplace<RowScaledCodes>();
      coded.max_code = entry.max_code;
      coded.codes.reserve(entry.elements());
      coded.row_scales.reserve(entry.rows());
    } else {
      RawTensor& raw = tensor.data.emplace<RawTensor>();
      raw.dtype = entry.dtype;
      raw.bytes.reserve(entry.content_bytes());
    }
    model.tensors.push_back(std::move(tensor));
  }
  return model;
}

}  // namespace

QuantizedModel decode_artifact(Bytes file, const std::string& path) {
  const OpenArtifact artifact = open_artifact(file, path);
  // Everything is decompressed before any tensor is given room, so memory follows what the file really holds.
  std::vector<ByteVector> contents(artifact.plan.size());
  parallel_for(static_cast<int64_t>(contents.size()), [&](int64_t i) {
    contents[static_cast<size_t>(i)] = read_content(artifact, static_cast<size_t>(i), path);
  });
  QuantizedModel model = empty_model(artifact.header);
  for (size_t i = 0; i < contents.size(); ++i) {
    append_content(model, artifact.plan[i], contents[i]);
    contents[i] = {};
  }
  check_model(model, path);
  return model;
}

}  // namespace thimble
