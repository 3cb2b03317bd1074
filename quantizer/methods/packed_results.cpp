// packed_results.cpp: an index (packed_index.h), then the items' numbers, in its order.
#include "quantizer/methods/packed_results.h"

#include <map>
#include <string>

#include "quantizer/methods/packed_index.h"

namespace thimble {

ByteVector pack_hessians(const HessianSet& hessians) {
  std::map<const Hessian*, std::vector<std::string>> layers;
  for (const auto& [layer, hessian] : hessians) layers[hessian.get()].push_back(layer);
  Json index = Json::array();
  for (const auto& [hessian, names] : layers)
    index.push_back({{"layers", names},
                     {"columns", hessian->matrix.size()},
                     {"tokens", hessian->token_count},
                     {"sequences", hessian->sequence_count}});
  ByteVector bytes = start_with_index(index);
  for (const auto& [hessian, names] : layers) append_bytes(bytes, std::as_bytes(hessian->matrix.values()));
  return bytes;
}

HessianSet unpack_hessians(Bytes bytes) {
  ByteCursor cursor(bytes, kPackedOrigin);
  HessianSet hessians;
  for (const Json& item : read_index(cursor)) {
    Hessian hessian{SymmetricMatrix(item.at("columns")), item.at("tokens"), item.at("sequences")};
    read_values(cursor, hessian.matrix.values());
    auto shared = std::make_shared<const Hessian>(std::move(hessian));
    for (const Json& layer : item.at("layers")) hessians[layer] = shared;
  }
  return hessians;
}

namespace {

// A length, then so many bytes.
void append_block(ByteVector& bytes, Bytes block) {
  append_little_endian(bytes, static_cast<uint64_t>(block.size()));
  append_bytes(bytes, block);
}

Bytes take_block(ByteCursor& cursor) { return cursor.take(cursor.read<uint64_t>("length of a block"), "block"); }

ByteVector pack_fisher(const FisherSet& set) {
  Json index = Json::array();
  for (const auto& [name, fisher] : set)
    index.push_back({{"name", name}, {"outputs", fisher.mean_square.size()}, {"tokens", fisher.token_count}});
  ByteVector bytes = start_with_index(index);
  for (const auto& [name, fisher] : set) append_bytes(bytes, std::as_bytes(std::span(fisher.mean_square)));
  return bytes;
}

FisherSet unpack_fisher(Bytes bytes) {
  ByteCursor cursor(bytes, kPackedOrigin);
  FisherSet set;
  for (const Json& item : read_index(cursor)) {
    Fisher& fisher = set[item.at("name")];
    fisher.token_count = item.at("tokens");
    fisher.mean_square.resize(item.at("outputs"));
    read_values(cursor, std::span(fisher.mean_square));
  }
  return set;
}

// 0 for NVFP4.
int max_code_of(const QuantizedTensor& tensor) {
  const auto* scaled = std::get_if<RowScaledCodes>(&tensor.data);
  return scaled ? scaled->max_code : 0;
}

ByteVector pack_counts(const RowCounts& counts) {
  Json index = Json::array();
  for (const auto& [table, rows] : counts) index.push_back({{"name", table}, {"rows", rows.size()}});
  ByteVector bytes = start_with_index(index);
  for (const auto& [table, rows] : counts) append_bytes(bytes, std::as_bytes(std::span(rows)));
  return bytes;
}

RowCounts unpack_counts(Bytes bytes) {
  ByteCursor cursor(bytes, kPackedOrigin);
  RowCounts counts;
  for (const Json& item : read_index(cursor)) {
    std::vector<int64_t>& rows = counts[item.at("name")];
    rows.resize(item.at("rows"));
    read_values(cursor, std::span(rows));
  }
  return counts;
}

}  // namespace

ByteVector pack_statistics(const CalibrationStatistics& statistics) {
  ByteVector bytes;
  append_block(bytes, pack_hessians(statistics.hessians));
  append_block(bytes, pack_hessians(statistics.loss.head));
  append_block(bytes, pack_fisher(statistics.loss.output_fisher));
  append_block(bytes, pack_fisher(statistics.loss.lookup_fisher));
  append_block(bytes, pack_counts(statistics.loss.row_counts));
  return bytes;
}

CalibrationStatistics unpack_statistics(Bytes bytes) {
  ByteCursor cursor(bytes, kPackedOrigin);
  CalibrationStatistics statistics;
  statistics.hessians = unpack_hessians(take_block(cursor));
  statistics.loss.head = unpack_hessians(take_block(cursor));
  statistics.loss.output_fisher = unpack_fisher(take_block(cursor));
  statistics.loss.lookup_fisher = unpack_fisher(take_block(cursor));
  statistics.loss.row_counts = unpack_counts(take_block(cursor));
  return statistics;
}

ByteVector pack_solution(const SolvedTensor& solved) {
  ByteVector bytes = start_with_index({{"name", solved.tensor.name},
                                       {"shape", solved.tensor.shape},
                                       {"max_code", max_code_of(solved.tensor)},
                                       {"report", to_json(solved.report.value())}});
  if (const auto* blocked = std::get_if<Nvfp4Codes>(&solved.tensor.data)) {
    append_bytes(bytes, std::as_bytes(std::span(blocked->codes)));
    append_bytes(bytes, std::as_bytes(std::span(blocked->block_scales)));
    append_bytes(bytes, std::as_bytes(std::span(&blocked->tensor_scale, 1)));
    return bytes;
  }
  const auto& codes = std::get<RowScaledCodes>(solved.tensor.data);
  append_bytes(bytes, std::as_bytes(std::span(codes.codes)));
  append_bytes(bytes, std::as_bytes(std::span(codes.row_scales)));
  return bytes;
}

SolvedTensor unpack_solution(Bytes bytes) {
  ByteCursor cursor(bytes, kPackedOrigin);
  const Json index = read_index(cursor);
  const Shape shape = index.at("shape");
  SolvedTensor solved{{index.at("name"), shape, RowScaledCodes{}}, gptq_report_from(index.at("report"))};
  if (const int max_code = index.at("max_code"); max_code > 0) {
    auto& codes = std::get<RowScaledCodes>(solved.tensor.data);
    codes.max_code = max_code;
    codes.codes.resize(static_cast<size_t>(element_count(shape)));
    codes.row_scales.resize(static_cast<size_t>(shape.at(0)));
    read_values(cursor, std::span(codes.codes));
    read_values(cursor, std::span(codes.row_scales));
  } else {
    Nvfp4Codes& codes = solved.tensor.data.emplace<Nvfp4Codes>(nvfp4_zeros(shape.at(0), shape.at(1)));
    read_values(cursor, std::span(codes.codes));
    read_values(cursor, std::span(codes.block_scales));
    read_values(cursor, std::span(&codes.tensor_scale, 1));
  }
  return solved;
}

Json to_json(const GptqReport& report) {
  return {{"clip_fraction", report.clip_fraction},
          {"weight_mse", report.weight_mse},
          {"weighted_loss", report.weighted_loss},
          {"damping", report.damping},
          {"dead_columns", report.dead_columns}};
}

GptqReport gptq_report_from(const Json& json) {
  return {json.at("clip_fraction"), json.at("weight_mse"), json.at("weighted_loss"), json.at("damping"),
          json.at("dead_columns").get<std::vector<int64_t>>()};
}

}  // namespace thimble
