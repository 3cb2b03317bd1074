// packed_values.h: values as bytes and back, exactly: for the other ranks and for the work folder. Those who read them
// run this very program on machines of this kind, so numbers travel as they lie in memory. A type says what it consists
// of by a function `members(value)`, a tuple of references, and may check what was read by `is_consistent(value)`;
// types of rooms below that are plain structs have theirs here.
//   numbers, enums               as they are
//   vectors, maps, text          their length, then the elements; of int32, one, two or four bytes each as the largest
//                                needs
//   optional, variant            what is in it, then that
//   shared_ptr                   each object once, then its number: sharing survives
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "gptq/slope/slope_solver.h"
#include "gptq/statistics/fisher.h"
#include "gptq/trace/plan.h"
#include "runtime/base/byte_cursor.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

template <typename T>
concept PlainValue = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::byte>;

class PackArchive {
 public:
  template <typename... T>
  void operator()(const T&... values) {
    (add(values), ...);
  }
  ByteVector take() { return std::move(bytes_); }

 private:
  void add(const PlainValue auto& value) { append(std::as_bytes(std::span(&value, 1))); }
  void add(const std::string& text) { add_all(std::span(text)); }
  template <typename T>
  void add(const std::vector<T>& values) {
    add_all(std::span(values));
  }
  void add(const std::vector<int32_t>& values) {
    int32_t widest = 0;  // negative values as the positive ones that take as many bits
    for (int32_t value : values) widest = std::max(widest, value < 0 ? ~value : value);
    if (widest <= std::numeric_limits<int8_t>::max())
      add_narrow<int8_t>(values);
    else if (widest <= std::numeric_limits<int16_t>::max())
      add_narrow<int16_t>(values);
    else
      add_narrow<int32_t>(values);
  }
  template <typename K, typename V>
  void add(const std::map<K, V>& values) {
    add(uint64_t{values.size()});
    for (const auto& value : values) add(value);
  }
  template <typename A, typename B>
  void add(const std::pair<A, B>& value) {
    (*this)(value.first, value.second);
  }
  template <typename T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  template <typename... T>
  void add(const std::variant<T...>& value) {
    add(uint64_t{value.index()});
    std::visit([&](const auto& held) { add(held); }, value);
  }
  template <typename T>
  void add(const std::shared_ptr<const T>& value) {
    const auto [found, is_new] = shared_.emplace(value.get(), uint64_t{shared_.size()});
    add(found->second);
    if (is_new) add(*value);
  }
  template <typename T>
  void add(const T& value) {
    std::apply(*this, members(const_cast<T&>(value)));  // which this direction leaves as it is
  }

  void append(Bytes bytes) {
    const size_t end = bytes_.size();
    bytes_.resize(end + bytes.size());
    if (!bytes.empty()) std::memcpy(bytes_.data() + end, bytes.data(), bytes.size());
  }
  template <typename T>
  void add_all(std::span<const T> values) {
    add(uint64_t{values.size()});
    if constexpr (PlainValue<T>)
      append(std::as_bytes(values));
    else
      for (const T& value : values) add(value);
  }
  template <typename N>
  void add_narrow(const std::vector<int32_t>& values) {
    const std::vector<N> narrow(values.begin(), values.end());
    add(uint8_t{sizeof(N)});
    add_all(std::span(narrow));
  }

  ByteVector bytes_;
  std::map<const void*, uint64_t> shared_;
};

// Bytes that end too early, and numbers that no value has, are FormatErrors.
class UnpackArchive {
 public:
  explicit UnpackArchive(Bytes bytes) : cursor_(bytes, "packed values") {}

  template <typename... T>
  void operator()(T&... values) {
    (read(values), ...);
  }
  void require(bool is_right) const {
    if (!is_right) throw FormatError(cursor_.path(), "hold what no value has");
  }
  void require_end() const { require(cursor_.at_end()); }

 private:
  void read(PlainValue auto& value) { fill(std::span(&value, 1)); }
  void read(std::string& text) {
    text.resize(count(1));
    fill(std::span(text));
  }
  template <typename T>
  void read(std::vector<T>& values) {
    values.resize(count(PlainValue<T> ? sizeof(T) : 1));
    if constexpr (PlainValue<T>)
      fill(std::span(values));
    else
      for (T& value : values) read(value);
  }
  void read(std::vector<int32_t>& values) {
    const auto width = one<uint8_t>();
    require(width == 1 || width == 2 || width == 4);
    if (width == 1) read_narrow<int8_t>(values);
    if (width == 2) read_narrow<int16_t>(values);
    if (width == 4) read_narrow<int32_t>(values);
  }
  template <typename K, typename V>
  void read(std::map<K, V>& values) {
    values.clear();
    for (uint64_t left = count(1); left > 0; --left) values.insert(one<std::pair<K, V>>());
  }
  template <typename A, typename B>
  void read(std::pair<A, B>& value) {
    (*this)(value.first, value.second);
  }
  template <typename T>
  void read(std::optional<T>& value) {
    value.reset();
    if (one<bool>()) read(value.emplace());
  }
  template <typename... T>
  void read(std::variant<T...>& value) {
    const auto index = one<uint64_t>();
    require(index < sizeof...(T));
    uint64_t i = 0;
    ((i++ == index ? read(value.template emplace<T>()) : void()), ...);
  }
  template <typename T>
  void read(std::shared_ptr<const T>& value) {
    const auto number = one<uint64_t>();
    require(number <= shared_.size());
    if (number == shared_.size()) shared_.push_back(std::make_shared<const T>(one<T>()));
    value = std::static_pointer_cast<const T>(shared_[number]);
  }
  template <typename T>
  void read(T& value) {
    std::apply(*this, members(value));
    if constexpr (requires { is_consistent(value); }) require(is_consistent(value));
  }

  template <typename T>
  T one() {
    T value{};
    read(value);
    return value;
  }
  // Of elements that take at least so many bytes.
  uint64_t count(size_t least_bytes) {
    const auto count = one<uint64_t>();
    require(count <= cursor_.remaining() / least_bytes);
    return count;
  }
  template <typename T>
  void fill(std::span<T> values) {
    const Bytes bytes = cursor_.take(values.size_bytes(), "numbers");
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  template <typename N>
  void read_narrow(std::vector<int32_t>& values) {
    std::vector<N> narrow(count(sizeof(N)));
    fill(std::span(narrow));
    values.assign(narrow.begin(), narrow.end());
  }

  ByteCursor cursor_;
  std::vector<std::shared_ptr<const void>> shared_;
};

template <typename T>
ByteVector pack(const T& value) {
  PackArchive archive;
  archive(value);
  return archive.take();
}

template <typename T>
T unpack(Bytes bytes) {
  UnpackArchive archive(bytes);
  T value{};
  archive(value);
  archive.require_end();
  return value;
}

inline auto members(Hessian& h) { return std::tie(h.matrix, h.token_count, h.sequence_count); }
inline auto members(SharedHessian& h) { return std::tie(h.layers, h.hessian); }
inline auto members(Fisher& f) { return std::tie(f.mean_square, f.token_count); }
inline auto members(LossStatistics& l) { return std::tie(l.output_fisher, l.lookup_fisher, l.row_counts, l.head); }
inline auto members(CalibrationStatistics& s) { return std::tie(s.hessians, s.loss); }
inline auto members(RowScaledCodes& c) { return std::tie(c.max_code, c.codes, c.row_scales); }
inline auto members(SteppedCodes& c) { return std::tie(c.trellis_bits, c.codes, c.row_steps, c.column_steps); }
inline auto members(Nvfp4Codes& c) { return std::tie(c.codes, c.block_scales, c.tensor_scale); }
inline auto members(RawTensor& t) { return std::tie(t.dtype, t.bytes); }
inline auto members(QuantizedTensor& t) { return std::tie(t.name, t.shape, t.data); }
inline auto members(QuantizedModel& m) { return std::tie(m.config_json, m.provenance_json, m.banked, m.tensors); }
inline auto members(GptqReport& r) {
  return std::tie(r.clip_fraction, r.weight_mse, r.weighted_loss, r.damping, r.dead_columns);
}
inline auto members(SolvedTensor& s) { return std::tie(s.tensor, s.report); }
inline auto members(SlopeReport& r) {
  return std::tie(r.weight_mse, r.weighted_loss, r.row_weighted_loss, r.estimated_bits, r.damping, r.dead_columns);
}

}  // namespace thimble
