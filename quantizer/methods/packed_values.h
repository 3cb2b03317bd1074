// packed_values.h: values as bytes and back, exactly: for the other ranks and for the work folder. Those who read them
// run this very program on machines of this kind, so numbers travel as they lie in memory. A type says what it consists
// of by a function `members(value)`, a tuple of references, and may check what was read by `is_consistent(value)`;
// types of rooms below that are plain structs have theirs here.
//   numbers, enums               as they are
//   vectors, maps, text          their length, then the elements
//   optional, variant            what is in it, then that
//   shared_ptr                   each object once, then its number: sharing survives
#pragma once

#include <algorithm>
#include <cstring>
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
#include "gptq/statistics/stored_statistics.h"
#include "gptq/trace/plan.h"
#include "packer/container/section_packer.h"
#include "runtime/base/byte_cursor.h"
#include "runtime/base/hash.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

template <typename T>
concept PlainValue = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::byte>;

// One walk over a value for both directions: what wrote it reads it.
class ValueArchive {
 public:
  // Writes into room for so many bytes.
  explicit ValueArchive(uint64_t bytes) { written_.reserve(bytes); }
  // Reads. Bytes that end too early, and numbers that no value has, are FormatErrors. Hessians stay where the bytes
  // are, as long as these have an owner.
  explicit ValueArchive(const HeldBytes& held) : cursor_(std::in_place, held.bytes, kWhere), owner_(held.owner) {}
  // Counts the bytes that writing would take.
  static ValueArchive counting() {
    ValueArchive archive(uint64_t{0});
    archive.is_counting_ = true;
    return archive;
  }
  // Adds to `hasher` what writing would write, without room for it. The hasher must outlive the archive.
  explicit ValueArchive(Hasher& hasher) : hasher_(&hasher) {}

  template <typename... T>
  void operator()(T&... values) {
    (walk(values), ...);
  }
  ByteVector take() { return std::move(written_); }
  uint64_t counted() const { return counted_; }
  void require_end() const { require(cursor_->at_end()); }

 private:
  void walk(PlainValue auto& value) { walk_numbers(std::span(&value, 1)); }
  void walk(std::string& text) { walk_all(text); }
  template <typename T>
  void walk(std::vector<T>& values) {
    walk_all(values);
  }
  template <typename K, typename V>
  void walk(std::map<K, V>& values) {
    uint64_t left = count(values.size(), 1);
    if (cursor_) {
      for (; left > 0; --left) {
        std::pair<K, V> value;
        (*this)(value.first, value.second);
        values.insert(std::move(value));
      }
    } else {
      for (auto& [key, value] : values) (*this)(const_cast<K&>(key), value);  // as in pack()
    }
  }
  template <typename T>
  void walk(std::optional<T>& value) {
    bool has_value = value.has_value();
    walk(has_value);
    if (has_value) walk(value ? *value : value.emplace());
  }
  template <typename... T>
  void walk(std::variant<T...>& value) {
    uint64_t index = value.index();
    walk(index);
    require(index < sizeof...(T));
    uint64_t i = 0;
    if (cursor_) ((i++ == index ? void(value.template emplace<T>()) : void()), ...);
    std::visit([&](auto& held) { walk(held); }, value);
  }
  template <typename T>
  void walk(std::shared_ptr<const T>& value) {
    uint64_t number = static_cast<uint64_t>(std::ranges::find(shared_, value) - shared_.begin());
    walk(number);
    require(number <= shared_.size());
    const bool is_new = number == shared_.size();
    if (cursor_ && !is_new) value = std::static_pointer_cast<const T>(shared_[number]);
    if (cursor_ && is_new) value = std::make_shared<T>();
    if (!is_new) return;
    shared_.push_back(value);
    walk(const_cast<T&>(*value));  // which was just made, or is left as it is
  }
  void walk(StoredHessian& hessian) {
    int64_t size = hessian.size(), tokens = hessian.token_count(), sequences = hessian.sequence_count();
    (*this)(size, tokens, sequences);
    require(size >= 0 && size < (int64_t{1} << 31));
    const uint64_t bytes = StoredHessian::float_bytes(size);
    if (hasher_) {
      ByteVector floats;
      hessian.append_floats(floats);
      return void(hasher_->add(floats));
    }
    if (!cursor_) return is_counting_ ? void(counted_ += bytes) : hessian.append_floats(written_);
    const Bytes floats = cursor_->take(bytes, "a Hessian");
    hessian = StoredHessian(owner_ ? HeldBytes{floats, owner_} : hold({floats.begin(), floats.end()}),
                            StoredHessian::Layout::kTriangle, size, tokens, sequences);
  }
  template <typename T>
  void walk(T& value) {
    std::apply(*this, members(value));
    if constexpr (requires { is_consistent(value); }) require(is_consistent(value));
  }

  static void require(bool is_right) {
    if (!is_right) throw FormatError(kWhere, "hold what no value has");
  }
  // Of elements that take at least so many bytes.
  uint64_t count(uint64_t count, size_t least_bytes) {
    walk(count);
    if (cursor_) require(count <= cursor_->remaining() / least_bytes);
    return count;
  }
  template <typename Values>
  void walk_all(Values& values) {
    using T = typename Values::value_type;
    const uint64_t size = count(values.size(), PlainValue<T> ? sizeof(T) : 1);
    if (cursor_) values.resize(size);
    if constexpr (PlainValue<T>)
      walk_numbers(std::span(values));
    else
      for (T& value : values) walk(value);
  }
  template <typename T>
  void walk_numbers(std::span<T> values) {
    if (values.empty()) return;
    if (cursor_) {
      std::memcpy(values.data(), cursor_->take(values.size_bytes(), "numbers").data(), values.size_bytes());
    } else if (hasher_) {
      hasher_->add(std::as_bytes(values));
    } else if (is_counting_) {
      counted_ += values.size_bytes();
    } else {
      const size_t at = written_.size();
      written_.resize(at + values.size_bytes());  // within the room
      std::memcpy(written_.data() + at, values.data(), values.size_bytes());
    }
  }

  static constexpr const char* kWhere = "packed values";
  std::optional<ByteCursor> cursor_;   // of what is read
  std::shared_ptr<const void> owner_;  // of these bytes, or none
  Hasher* hasher_ = nullptr;
  ByteVector written_;
  bool is_counting_ = false;
  uint64_t counted_ = 0;
  std::vector<std::shared_ptr<const void>> shared_;  // by number
};

template <typename T>
ByteVector pack(const T& value) {
  T& same = const_cast<T&>(value);  // which this direction leaves as it is
  ValueArchive counting = ValueArchive::counting();
  counting(same);
  ValueArchive archive(counting.counted());
  archive(same);
  return archive.take();
}

// Hash of the bytes that pack() gives, which are never all there.
template <typename T>
uint64_t hash_of(const T& value) {
  Hasher hasher;
  ValueArchive archive(hasher);
  archive(const_cast<T&>(value));  // as above
  return hasher.digest();
}

template <typename T>
T unpack(const HeldBytes& held) {
  ValueArchive archive(held);
  T value{};
  archive(value);
  archive.require_end();
  return value;
}

template <typename T>
T unpack(Bytes bytes) {
  return unpack<T>(HeldBytes{bytes, nullptr});
}

inline auto members(Hessian& h) { return std::tie(h.matrix, h.token_count, h.sequence_count); }
inline auto members(SharedHessian& h) { return std::tie(h.layers, h.hessian); }
inline auto members(Fisher& f) { return std::tie(f.mean_square, f.token_count); }
inline auto members(LossStatistics& l) { return std::tie(l.output_fisher, l.lookup_fisher, l.row_counts, l.head); }
inline auto members(CalibrationStatistics& s) { return std::tie(s.hessians, s.loss); }
inline auto members(StoredStatistics& s) { return std::tie(s.hessians, s.loss); }
inline auto members(RowScaledCodes& c) { return std::tie(c.max_code, c.codes, c.row_scales); }
inline auto members(SteppedCodes& c) { return std::tie(c.trellis_bits, c.codes, c.row_steps, c.column_steps); }
inline auto members(Nvfp4Codes& c) { return std::tie(c.codes, c.block_scales, c.tensor_scale); }
inline auto members(RawTensor& t) { return std::tie(t.dtype, t.bytes); }
inline auto members(QuantizedTensor& t) { return std::tie(t.name, t.shape, t.data); }
inline auto members(QuantizedModel& m) { return std::tie(m.config_json, m.provenance_json, m.banked, m.tensors); }
inline auto members(PackedSection& s) {
  auto& [kind, codec, layout, raw_bytes, stored_bytes, checksum] = s.entry;
  return std::tie(kind, codec, layout, raw_bytes, stored_bytes, checksum, s.stored);
}
inline auto members(GptqReport& r) {
  return std::tie(r.clip_fraction, r.weight_mse, r.weighted_loss, r.damping, r.dead_columns);
}
inline auto members(SolvedTensor& s) { return std::tie(s.tensor, s.report); }
inline auto members(SlopeReport& r) {
  return std::tie(r.weight_mse, r.weighted_loss, r.row_weighted_loss, r.estimated_bits, r.damping, r.dead_columns);
}

}  // namespace thimble
