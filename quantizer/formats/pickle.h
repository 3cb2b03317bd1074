// pickle.h: a data-only interpreter of Python pickles, protocols 2 to 5.
//
// In: the bytes of one pickle and the list of globals that it may name.  Out: its values as plain data.
// Nothing is imported or called: a REDUCE becomes a kCall value that records callable and arguments, and the reader of
// the checkpoint decides what it means. Opcodes and globals outside the allow-lists are FormatErrors that name them.
//
// Limits: a pickle of kMaxPickleBytes, kMaxPickleStack values and marks at once; each opcode makes at most one value,
// texts stay views into the bytes, and nothing recurses, so memory and time grow linearly with the pickle's length:
// at worst about 70 B of memory per byte.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/byte_cursor.h"

namespace thimble {

constexpr uint64_t kMaxPickleBytes = uint64_t{4} << 20;  // a tensor takes 100 to 250 B
constexpr size_t kMaxPickleStack = size_t{1} << 20;

using PickleIndex = uint32_t;  // position in Pickle::values

enum class PickleKind : uint8_t {
  kNone,
  kBool,        // integer: 0 or 1
  kInt,         // integer
  kFloat,       // real
  kText,        // text: UTF-8 as the pickle spells it, not validated
  kOpaque,      // bytes, or an integer above 64 bits: kept as a place holder only
  kTuple,       // items
  kList,        // items
  kSet,         // items, not deduplicated
  kDict,        // items: key, value, key, value, ... in the order of insertion, not deduplicated
  kGlobal,      // integer: position in the list of allowed globals
  kCall,        // items: callable (a kGlobal), arguments (a kTuple)
  kPersistent,  // items: the persistent id
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  std::variant<std::monostate, int64_t, double, std::string_view, std::vector<PickleIndex>> data;

  int64_t integer() const { return std::get<int64_t>(data); }
  double real() const { return std::get<double>(data); }
  std::string_view text() const { return std::get<std::string_view>(data); }
  const std::vector<PickleIndex>& items() const { return std::get<std::vector<PickleIndex>>(data); }
};

// A list, set or dict may contain itself (through the memo): who walks the values must expect cycles and sharing.
struct Pickle {
  std::vector<PickleValue> values;
  PickleIndex root = 0;

  const PickleValue& operator[](PickleIndex index) const { return values[index]; }
  // Nothing where the value is no text.
  std::optional<std::string_view> text(PickleIndex index) const {
    return values[index].kind == PickleKind::kText ? std::optional(values[index].text()) : std::nullopt;
  }
};

struct PickleGlobal {
  std::string_view module;
  std::string_view name;
  bool is_dict_class = false;  // calling it without arguments makes an empty kDict; any other call is refused
};

// `where` ("path: entry") starts the error messages. The values refer to `bytes`, which must outlive them.
Pickle read_pickle(Bytes bytes, const std::string& where, std::span<const PickleGlobal> allowed);

}  // namespace thimble
