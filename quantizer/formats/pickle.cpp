// pickle.cpp: the stack machine of pickle.h. Machine::execute() is the list of the opcodes that are allowed.
#include "quantizer/formats/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "quantizer/console/quoted_name.h"
#include "runtime/base/count_text.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr uint8_t kProto = 0x80;
constexpr uint8_t kStop = '.';
constexpr int kMinProtocol = 2;
constexpr int kMaxProtocol = 5;
constexpr size_t kMaxGlobalLineBytes = 256;
constexpr PickleIndex kNeverPut = ~PickleIndex{0};

// The names of all opcodes of protocols 0 to 5, for errors: of those that are text, and of 0x80 to 0x98.
constexpr std::string_view kTextOpcodes = "(.012FIJKLMNPQRSTUVXabcd}eghijl]opqrst)uGBC";
constexpr std::array kTextOpcodeNames = {
    "MARK",          "STOP",        "POP",       "POP_MARK",        "DUP",      "FLOAT",      "INT",
    "BININT",        "BININT1",     "LONG",      "BININT2",         "NONE",     "PERSID",     "BINPERSID",
    "REDUCE",        "STRING",      "BINSTRING", "SHORT_BINSTRING", "UNICODE",  "BINUNICODE", "APPEND",
    "BUILD",         "GLOBAL",      "DICT",      "EMPTY_DICT",      "APPENDS",  "GET",        "BINGET",
    "INST",          "LONG_BINGET", "LIST",      "EMPTY_LIST",      "OBJ",      "PUT",        "BINPUT",
    "LONG_BINPUT",   "SETITEM",     "TUPLE",     "EMPTY_TUPLE",     "SETITEMS", "BINFLOAT",   "BINBYTES",
    "SHORT_BINBYTES"};
static_assert(kTextOpcodes.size() == kTextOpcodeNames.size());
constexpr std::array kHighOpcodeNames = {
    "PROTO",     "NEWOBJ",     "EXT1",        "EXT2",           "EXT4",      "TUPLE1",           "TUPLE2",
    "TUPLE3",    "NEWTRUE",    "NEWFALSE",    "LONG1",          "LONG4",     "SHORT_BINUNICODE", "BINUNICODE8",
    "BINBYTES8", "EMPTY_SET",  "ADDITEMS",    "FROZENSET",      "NEWOBJ_EX", "STACK_GLOBAL",     "MEMOIZE",
    "FRAME",     "BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"};

const char* opcode_name(uint8_t opcode) {
  if (const size_t at = kTextOpcodes.find(static_cast<char>(opcode)); at != std::string_view::npos)
    return kTextOpcodeNames[at];
  return opcode >= kProto && opcode < kProto + kHighOpcodeNames.size() ? kHighOpcodeNames[opcode - kProto] : "unknown";
}

class Machine {
 public:
  Machine(Bytes bytes, const std::string& where, std::span<const PickleGlobal> allowed)
      : bytes_(bytes), cursor_(bytes, where), allowed_(allowed) {}

  Pickle run() {
    if (cursor_.remaining() > kMaxPickleBytes)
      throw FormatError(cursor_.path(),
                        fmt::format("pickle of {} B, at most {} B allowed: save model.state_dict() alone",
                                    cursor_.remaining(), kMaxPickleBytes));
    if (cursor_.read<uint8_t>("PROTO opcode") != kProto)
      throw FormatError(cursor_.path(), "is not a pickle of protocol 2 to 5: it does not start with opcode PROTO");
    int protocol = cursor_.read<uint8_t>("pickle protocol");
    if (protocol < kMinProtocol || protocol > kMaxProtocol)
      throw FormatError(cursor_.path(), fmt::format("pickle protocol {}, allowed are 2 to 5", protocol));
    for (;;) {
      opcode_at_ = cursor_.position();
      opcode_ = cursor_.read<uint8_t>("opcode");
      if (opcode_ == kStop) break;
      execute();
    }
    if (stack_.size() != 1 || !marks_.empty())
      fail(fmt::format("{} and {} left, must be 1 and 0", counted(stack_.size(), "value"),
                       counted(marks_.size(), "mark")));
    if (!cursor_.at_end()) fail(fmt::format("{} B follow the end of the pickle", cursor_.remaining()));
    return {std::move(values_), stack_.front()};
  }

 private:
  using Items = std::vector<PickleIndex>;

  // Left out, and so refused: protocol 0 and 1, memory that lies outside the pickle, and everything that makes
  // instances of classes.
  void execute() {
    using enum PickleKind;
    switch (opcode_) {
      case 'N': return push_value(kNone);
      case 0x88: return push_value(kBool, int64_t{1});
      case 0x89: return push_value(kBool, int64_t{0});
      case 'J': return push_value(kInt, int64_t{cursor_.read<int32_t>("integer")});
      case 'K': return push_value(kInt, int64_t{cursor_.read<uint8_t>("integer")});
      case 'M': return push_value(kInt, int64_t{cursor_.read<uint16_t>("integer")});
      case 0x8a: return long_integer(take<uint8_t>("integer"));
      case 0x8b: return long_integer(take<uint32_t>("integer"));
      case 'G': return real(cursor_.take(sizeof(double), "float"));
      case 'U':
      case 0x8c: return push_value(kText, as_text(take<uint8_t>("text")));
      case 'T':
      case 'X': return push_value(kText, as_text(take<uint32_t>("text")));
      case 0x8d: return push_value(kText, as_text(take<uint64_t>("text")));
      case 'C': return opaque(take<uint8_t>("bytes"));
      case 'B': return opaque(take<uint32_t>("bytes"));
      case 0x8e:
      case 0x96: return opaque(take<uint64_t>("bytes"));

      case '(': return mark();
      case '0': return pop_one();
      case '1': pop_to_mark(); return;
      case ')': return push_value(kTuple, Items{});
      case ']': return push_value(kList, Items{});
      case '}': return push_value(kDict, Items{});
      case 0x8f: return push_value(kSet, Items{});
      case 't': return push_value(kTuple, pop_to_mark());
      case 0x91: return push_value(kSet, pop_to_mark());
      case 0x85: return push_value(kTuple, pop_items(1));
      case 0x86: return push_value(kTuple, pop_items(2));
      case 0x87: return push_value(kTuple, pop_items(3));
      case 'a': return append_items(kList, "list", pop_items(1));
      case 'e': return append_items(kList, "list", pop_to_mark());
      case 0x90: return append_items(kSet, "set", pop_to_mark());
      case 's': return append_items(kDict, "dict", pop_items(2));
      case 'u': return append_items(kDict, "dict", pop_to_mark());

      case 'h': return get(cursor_.read<uint8_t>("memo index"));
      case 'j': return get(cursor_.read<uint32_t>("memo index"));
      case 'q': return put(cursor_.read<uint8_t>("memo index"));
      case 'r': return put(cursor_.read<uint32_t>("memo index"));
      case 0x94: return put(memo_.size());
      case 'c': return global();
      case 0x93: return stack_global();
      case 'R': return reduce();
      case 'b': return build();
      case 'Q': return push_value(kPersistent, pop_items(1));
      case 0x95: return frame();
      default: fail("refused: only plain state dicts are read, and nothing in a file is ever executed");
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(cursor_.path(), fmt::format("byte {}: opcode {} (0x{:02x}): {}", opcode_at_, opcode_name(opcode_),
                                                  opcode_, what));
  }

  // A length and as many bytes.
  template <typename Length>
  Bytes take(const char* object) {
    return cursor_.take(cursor_.read<Length>("length"), object);
  }

  // The stack; values below the last mark are out of reach until it is popped.
  void check_room() const {
    if (stack_.size() + marks_.size() >= kMaxPickleStack)
      fail(fmt::format("more than {} values at once", kMaxPickleStack));
  }
  void push(PickleIndex index) {
    check_room();
    stack_.push_back(index);
  }
  void push_value(PickleKind kind, decltype(PickleValue::data) data = {}) {
    push(static_cast<PickleIndex>(values_.size()));
    values_.push_back({kind, std::move(data)});
  }
  PickleIndex top() const {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("needs a value, the stack has none");
    return stack_.back();
  }
  PickleIndex pop() {
    PickleIndex index = top();
    stack_.pop_back();
    return index;
  }
  Items pop_items(size_t count) {
    Items items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }
  void mark() {
    check_room();
    marks_.push_back(stack_.size());
  }
  Items pop_to_mark() {
    if (marks_.empty()) fail("needs a mark, the stack has none");
    Items items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  // Python pops the mark itself when nothing lies above it.
  void pop_one() {
    if (!marks_.empty() && marks_.back() == stack_.size())
      marks_.pop_back();
    else
      pop();
  }

  // Two's complement, little-endian, any length; what does not fit 64 bits can only be ignored data.
  void long_integer(Bytes digits) {
    if (digits.size() > sizeof(int64_t)) return push_value(PickleKind::kOpaque);
    bool negative = !digits.empty() && (digits.back() & std::byte{0x80}) != std::byte{0};
    uint64_t value = negative ? ~uint64_t{0} : 0;
    for (size_t i = digits.size(); i-- > 0;) value = (value << 8) | std::to_integer<uint64_t>(digits[i]);
    push_value(PickleKind::kInt, static_cast<int64_t>(value));
  }

  // Big-endian, unlike everything else in a pickle.
  void real(Bytes digits) {
    uint64_t bits = 0;
    for (std::byte digit : digits) bits = (bits << 8) | std::to_integer<uint64_t>(digit);
    push_value(PickleKind::kFloat, std::bit_cast<double>(bits));
  }

  void opaque(Bytes) { push_value(PickleKind::kOpaque); }

  void append_items(PickleKind kind, const char* wanted, const Items& items) {
    if (kind == PickleKind::kDict && items.size() % 2 != 0) fail("a key without a value");
    PickleValue& target = values_[top()];
    if (target.kind != kind) fail(fmt::format("the value below is not a {}", wanted));
    Items& own = std::get<Items>(target.data);
    own.insert(own.end(), items.begin(), items.end());
  }

  void get(uint64_t index) {
    if (index >= memo_.size() || memo_[index] == kNeverPut) fail(fmt::format("memo {} was never put", index));
    push(memo_[index]);
  }
  // Picklers number the memo consecutively, so an index cannot reach the pickle's length.
  void put(uint64_t index) {
    if (index >= bytes_.size()) fail(fmt::format("memo {}, must be below the pickle's {} B", index, bytes_.size()));
    if (index >= memo_.size()) memo_.resize(index + 1, kNeverPut);
    memo_[index] = top();
  }

  std::string_view read_line() {
    std::string_view rest = as_text(bytes_.subspan(cursor_.position())).substr(0, kMaxGlobalLineBytes);
    size_t end = rest.find('\n');
    if (end == std::string_view::npos) fail(fmt::format("no end of line within {} B", kMaxGlobalLineBytes));
    return cursor_.take_text(end + 1, "line").substr(0, end);
  }
  void global() {
    std::string_view module = read_line();
    push_global(module, read_line());
  }
  void stack_global() {
    const PickleValue& name = values_[pop()];
    const PickleValue& module = values_[pop()];
    if (name.kind != PickleKind::kText || module.kind != PickleKind::kText) fail("needs two texts");
    push_global(module.text(), name.text());
  }
  void push_global(std::string_view module, std::string_view name) {
    auto found = std::ranges::find_if(
        allowed_, [&](const PickleGlobal& known) { return known.module == module && known.name == name; });
    if (found == allowed_.end())
      fail(fmt::format(
          "global {} of module {} refused: only plain state dicts are read, and nothing in a file is ever executed",
          quoted_name(name), quoted_name(module)));
    push_value(PickleKind::kGlobal, static_cast<int64_t>(found - allowed_.begin()));
  }
  void reduce() {
    PickleIndex arguments = pop();
    PickleIndex callable = pop();
    if (values_[callable].kind != PickleKind::kGlobal || values_[arguments].kind != PickleKind::kTuple)
      fail("needs a global and a tuple of arguments");
    if (!allowed_[static_cast<size_t>(values_[callable].integer())].is_dict_class)
      return push_value(PickleKind::kCall, Items{callable, arguments});
    if (!values_[arguments].items().empty()) fail("a dict class called with arguments");
    push_value(PickleKind::kDict, Items{});
  }
  // Attributes on top of a dict (state_dict()'s _metadata) or of a rebuilt object are no weights: dropped.
  void build() {
    pop();
    PickleKind kind = values_[top()].kind;
    if (kind != PickleKind::kDict && kind != PickleKind::kCall) fail("sets attributes of neither a dict nor a call");
  }
  // Framing only helps readers that buffer.
  void frame() {
    auto length = cursor_.read<uint64_t>("frame length");
    if (length > cursor_.remaining()) fail(fmt::format("a frame of {} B, {} B remain", length, cursor_.remaining()));
  }

  Bytes bytes_;
  ByteCursor cursor_;
  std::span<const PickleGlobal> allowed_;
  uint64_t opcode_at_ = 0;
  uint8_t opcode_ = kProto;
  std::vector<PickleValue> values_;
  Items stack_, memo_;
  std::vector<size_t> marks_;  // stack heights
};

}  // namespace

Pickle read_pickle(Bytes bytes, const std::string& where, std::span<const PickleGlobal> allowed) {
  return Machine(bytes, where, allowed).run();
}

}  // namespace thimble
