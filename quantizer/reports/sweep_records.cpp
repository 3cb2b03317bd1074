// sweep_records.cpp: see sweep_records.h. The work folder answers for damage, so that only another program's idea of a
// record is to be told from ours here.
#include "quantizer/reports/sweep_records.h"

namespace thimble {
namespace {

template <typename T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::optional<double> optional_number(const Json& record, const char* key) {
  const Json& found = record.at(key);
  return found.is_null() ? std::nullopt : std::optional(found.get<double>());
}

template <typename Read>
auto read_or_nothing(Read read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

Json record_of(const OriginalScore& original) {
  return {{"file_bytes", original.file_bytes},
          {"bits_per_byte", original.bits_per_byte},
          {"scored", original.scored},
          {"block_loss_nats", original.blocks.loss_nats},
          {"block_text_bytes", original.blocks.text_bytes}};
}

Json record_of(const SweepPoint& point) {
  return {{"method", point.method},
          {"budget_bytes", point.budget_bytes},
          {"failure", point.failure},
          {"fill_reason", point.fill_reason},
          {"artifact_bytes", point.artifact_bytes},
          {"artifact_hash", point.artifact_hash},
          {"bits_per_byte", point.bits_per_byte},
          {"gap_standard_error", optional_json(point.gap_standard_error)},
          {"predicted_loss", optional_json(point.predicted_loss)},
          {"distance_bits_per_weight", optional_json(point.distance_bits_per_weight)},
          {"seconds", point.seconds}};
}

std::optional<OriginalScore> original_from(const Json& record) {
  return read_or_nothing([&] {
    OriginalScore original;
    record.at("file_bytes").get_to(original.file_bytes);
    record.at("bits_per_byte").get_to(original.bits_per_byte);
    record.at("scored").get_to(original.scored);
    record.at("block_loss_nats").get_to(original.blocks.loss_nats);
    record.at("block_text_bytes").get_to(original.blocks.text_bytes);
    return original;
  });
}

std::optional<SweepPoint> point_from(const Json& record) {
  return read_or_nothing([&] {
    SweepPoint point;
    record.at("method").get_to(point.method);
    record.at("budget_bytes").get_to(point.budget_bytes);
    record.at("failure").get_to(point.failure);
    record.at("fill_reason").get_to(point.fill_reason);
    record.at("artifact_bytes").get_to(point.artifact_bytes);
    record.at("artifact_hash").get_to(point.artifact_hash);
    record.at("bits_per_byte").get_to(point.bits_per_byte);
    point.gap_standard_error = optional_number(record, "gap_standard_error");
    point.predicted_loss = optional_number(record, "predicted_loss");
    point.distance_bits_per_weight = optional_number(record, "distance_bits_per_weight");
    record.at("seconds").get_to(point.seconds);
    return point;
  });
}

}  // namespace thimble
