// decode_artifact.cpp: opens the sections of a file in parallel and rebuilds the model.
#include "packer/artifact.h"
#include "packer/container/artifact_reader.h"
#include "packer/container/section_content.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

void reserve_room(const ArtifactHeader& header, QuantizedModel& model) {
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorEntry& entry = header.tensors[i];
    if (auto* coded = std::get_if<RowScaledCodes>(&model.tensors[i].data)) {
      coded->codes.reserve(entry.elements());
      coded->row_scales.reserve(entry.rows());
    } else if (auto* stepped = std::get_if<SteppedCodes>(&model.tensors[i].data)) {
      stepped->codes.reserve(entry.elements());
      stepped->row_steps.reserve(entry.rows());
      stepped->column_steps.reserve(entry.columns());
    } else if (auto* blocked = std::get_if<Nvfp4Codes>(&model.tensors[i].data)) {
      blocked->codes.reserve(entry.rows() *
                             static_cast<uint64_t>(nvfp4_row_bytes(static_cast<int64_t>(entry.columns()))));
      blocked->block_scales.reserve(entry.scale_bytes());
    } else {
      std::get<RawTensor>(model.tensors[i].data).bytes.reserve(entry.content_bytes());
    }
  }
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
  reserve_room(artifact.header, model);
  for (size_t i = 0; i < contents.size(); ++i) {
    append_content(model, artifact.plan[i], contents[i]);
    contents[i] = {};
  }
  check_model(model, path);
  return model;
}

}  // namespace thimble
