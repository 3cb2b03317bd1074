// pickle.cpp: the stack machine of pickle.h. One table, kOpcodes, says which opcodes exist and which are allowed.
#include "quantizer/checkpoints/pickle.h"

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

class Machine {
 public:
  Machine(Bytes bytes, const std::string& where, std::span<const PickleGlobal> allowed)
      : bytes_(bytes), cursor_(bytes, where), allowed_(allowed) {}

  Pickle run();

 private:
  struct Opcode {
    const char* name = nullptr;        // null: no such opcode
    void (Machine::*run)() = nullptr;  // null: refused
  };
  static const std::array<Opcode, 256> kOpcodes;
  static std::array<Opcode, 256> opcode_table();

  [[noreturn]] void fail(const std::string& what) const;

  // The stack; values below the last mark are out of reach until it is popped.
  void push(PickleIndex index);
  void push_value(PickleKind kind, decltype(PickleValue::data) data = {});
  PickleIndex pop();
  PickleIndex top() const;
  std::vector<PickleIndex> pop_to_mark();
  void check_reachable() const;
  std::vector<PickleIndex>& top_items(PickleKind kind, const char* wanted);

  // Opcodes, grouped by what they do.
  template <PickleKind kKind>
  void push_empty() {
    push_value(kKind, std::vector<PickleIndex>{});
  }
  void none() { push_value(PickleKind::kNone); }
  template <int kValue>
  void boolean() {
    push_value(PickleKind::kBool, int64_t{kValue});
  }
  template <typename Integer>
  void integer() {
    push_value(PickleKind::kInt, static_cast<int64_t>(cursor_.read<Integer>("integer")));
  }
  template <typename Length>
  void long_integer();
  void real();
  template <typename Length>
  void text() {
    push_value(PickleKind::kText, cursor_.take_text(cursor_.read<Length>("text length"), "text"));
  }
  template <typename Length>
  void opaque() {
    cursor_.take(cursor_.read<Length>("length of bytes"), "bytes");
    push_value(PickleKind::kOpaque);
  }

  void mark();
  void pop_one();
  void pop_mark() { pop_to_mark(); }
  template <PickleKind kKind>
  void collect() {
    push_value(kKind, pop_to_mark());
  }
  template <int kCount>
  void small_tuple();
  void append() { append_items(PickleKind::kList, "list", {pop()}); }
  void appends() { append_items(PickleKind::kList, "list", pop_to_mark()); }
  void add_items() { append_items(PickleKind::kSet, "set", pop_to_mark()); }
  void set_item();
  void set_items();
  void append_items(PickleKind kind, const char* wanted, const std::vector<PickleIndex>& items);

  template <typename Index>
  void get() {
    get_memo(cursor_.read<Index>("memo index"));
  }
  template <typename Index>
  void put() {
    put_memo(cursor_.read<Index>("memo index"));
  }
  void memoize() { put_memo(memo_.size()); }
  void get_memo(uint64_t index);
  void put_memo(uint64_t index);

  void global();
  void stack_global();
  void push_global(std::string_view module, std::string_view name);
  std::string_view read_line();
  void reduce();
  void build();
  void persistent_id() { push_value(PickleKind::kPersistent, std::vector<PickleIndex>{pop()}); }
  void frame();

  Bytes bytes_;
  ByteCursor cursor_;
  std::span<const PickleGlobal> allowed_;
  uint64_t opcode_at_ = 0;
  uint8_t opcode_ = kProto;
  std::vector<PickleValue> values_;
  std::vector<PickleIndex> stack_;
  std::vector<size_t> marks_;  // stack heights
  std::vector<PickleIndex> memo_;
};

std::array<Machine::Opcode, 256> Machine::opcode_table() {
  using K = PickleKind;
  std::array<Opcode, 256> table;
  auto set = [&](int code, const char* name, void (Machine::*run)()) { table[code] = {name, run}; };
  // Protocol 0 and 1, memory that lies outside the pickle, and everything that makes instances of classes.
  for (auto [code, name] : {std::pair{'2', "DUP"},
                            {'F', "FLOAT"},
                            {'I', "INT"},
                            {'L', "LONG"},
                            {'P', "PERSID"},
                            {'S', "STRING"},
                            {'V', "UNICODE"},
                            {'d', "DICT"},
                            {'g', "GET"},
                            {'i', "INST"},
                            {'l', "LIST"},
                            {'o', "OBJ"},
                            {'p', "PUT"}})
    set(code, name, nullptr);
  for (auto [code, name] : {std::pair{0x80, "PROTO"},
                            {kStop, "STOP"},
                            {0x81, "NEWOBJ"},
                            {0x82, "EXT1"},
                            {0x83, "EXT2"},
                            {0x84, "EXT4"},
                            {0x92, "NEWOBJ_EX"},
                            {0x97, "NEXT_BUFFER"},
                            {0x98, "READONLY_BUFFER"}})
    set(code, name, nullptr);

  set('N', "NONE", &Machine::none);
  set(0x88, "NEWTRUE", &Machine::boolean<1>);
  set(0x89, "NEWFALSE", &Machine::boolean<0>);
  set('J', "BININT", &Machine::integer<int32_t>);
  set('K', "BININT1", &Machine::integer<uint8_t>);
  set('M', "BININT2", &Machine::integer<uint16_t>);
  set(0x8a, "LONG1", &Machine::long_integer<uint8_t>);
  set(0x8b, "LONG4", &Machine::long_integer<uint32_t>);
  set('G', "BINFLOAT", &Machine::real);
  set('X', "BINUNICODE", &Machine::text<uint32_t>);
  set(0x8c, "SHORT_BINUNICODE", &Machine::text<uint8_t>);
  set(0x8d, "BINUNICODE8", &Machine::text<uint64_t>);
  set('T', "BINSTRING", &Machine::text<uint32_t>);
  set('U', "SHORT_BINSTRING", &Machine::text<uint8_t>);
  set('B', "BINBYTES", &Machine::opaque<uint32_t>);
  set('C', "SHORT_BINBYTES", &Machine::opaque<uint8_t>);
  set(0x8e, "BINBYTES8", &Machine::opaque<uint64_t>);
  set(0x96, "BYTEARRAY8", &Machine::opaque<uint64_t>);

  set('(', "MARK", &Machine::mark);
  set('0', "POP", &Machine::pop_one);
  set('1', "POP_MARK", &Machine::pop_mark);
  set(')', "EMPTY_TUPLE", &Machine::push_empty<K::kTuple>);
  set(']', "EMPTY_LIST", &Machine::push_empty<K::kList>);
  set('}', "EMPTY_DICT", &Machine::push_empty<K::kDict>);
  set(0x8f, "EMPTY_SET", &Machine::push_empty<K::kSet>);
  set('t', "TUPLE", &Machine::collect<K::kTuple>);
  set(0x91, "FROZENSET", &Machine::collect<K::kSet>);
  set(0x85, "TUPLE1", &Machine::small_tuple<1>);
  set(0x86, "TUPLE2", &Machine::small_tuple<2>);
  set(0x87, "TUPLE3", &Machine::small_tuple<3>);
  set('a', "APPEND", &Machine::append);
  set('e', "APPENDS", &Machine::appends);
  set(0x90, "ADDITEMS", &Machine::add_items);
  set('s', "SETITEM", &Machine::set_item);
  set('u', "SETITEMS", &Machine::set_items);

  set('h', "BINGET", &Machine::get<uint8_t>);
  set('j', "LONG_BINGET", &Machine::get<uint32_t>);
  set('q', "BINPUT", &Machine::put<uint8_t>);
  set('r', "LONG_BINPUT", &Machine::put<uint32_t>);
  set(0x94, "MEMOIZE", &Machine::memoize);
  set('c', "GLOBAL", &Machine::global);
  set(0x93, "STACK_GLOBAL", &Machine::stack_global);
  set('R', "REDUCE", &Machine::reduce);
  set('b', "BUILD", &Machine::build);
  set('Q', "BINPERSID", &Machine::persistent_id);
  set(0x95, "FRAME", &Machine::frame);
  return table;
}

const std::array<Machine::Opcode, 256> Machine::kOpcodes = Machine::opcode_table();

void Machine::fail(const std::string& what) const {
  const char* name = kOpcodes[opcode_].name;
  throw FormatError(cursor_.path(), fmt::format("byte {}: opcode {} (0x{:02x}): {}", opcode_at_,
                                                name == nullptr ? "unknown" : name, opcode_, what));
}

Pickle Machine::run() {
  if (cursor_.remaining() > kMaxPickleBytes)
    throw FormatError(cursor_.path(), fmt::format("pickle of {} B, at most {} B allowed: save model.state_dict() alone",
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
    auto handler = kOpcodes[opcode_].run;
    if (handler == nullptr) fail("refused: only plain state dicts are read, and nothing in a file is ever executed");
    (this->*handler)();
  }
  if (stack_.size() != 1 || !marks_.empty())
    fail(fmt::format("{} and {} left, must be 1 and 0", counted(stack_.size(), "value"),
                     counted(marks_.size(), "mark")));
  if (!cursor_.at_end()) fail(fmt::format("{} B follow the end of the pickle", cursor_.remaining()));
  return {std::move(values_), stack_.front()};
}

void Machine::push(PickleIndex index) {
  if (stack_.size() + marks_.size() >= kMaxPickleStack)
    fail(fmt::format("more than {} values at once", kMaxPickleStack));
  stack_.push_back(index);
}

void Machine::push_value(PickleKind kind, decltype(PickleValue::data) data) {
  push(static_cast<PickleIndex>(values_.size()));
  values_.push_back({kind, std::move(data)});
}

void Machine::check_reachable() const {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("needs a value, the stack has none");
}

PickleIndex Machine::top() const {
  check_reachable();
  return stack_.back();
}

PickleIndex Machine::pop() {
  PickleIndex index = top();
  stack_.pop_back();
  return index;
}

std::vector<PickleIndex> Machine::pop_to_mark() {
  if (marks_.empty()) fail("needs a mark, the stack has none");
  std::vector<PickleIndex> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
  stack_.resize(marks_.back());
  marks_.pop_back();
  return items;
}

std::vector<PickleIndex>& Machine::top_items(PickleKind kind, const char* wanted) {
  PickleValue& target = values_[top()];
  if (target.kind != kind) fail(fmt::format("the value below is not a {}", wanted));
  return std::get<std::vector<PickleIndex>>(target.data);
}

void Machine::mark() {
  if (stack_.size() + marks_.size() >= kMaxPickleStack)
    fail(fmt::format("more than {} values at once", kMaxPickleStack));
  marks_.push_back(stack_.size());
}

// Python pops the mark itself when nothing lies above it.
void Machine::pop_one() {
  if (!marks_.empty() && marks_.back() == stack_.size())
    marks_.pop_back();
  else
    pop();
}

// Two's complement, little-endian, any length; what does not fit 64 bits can only be ignored data.
template <typename Length>
void Machine::long_integer() {
  Bytes digits = cursor_.take(cursor_.read<Length>("integer length"), "integer");
  if (digits.size() > sizeof(int64_t)) return push_value(PickleKind::kOpaque);
  bool negative = !digits.empty() && (digits.back() & std::byte{0x80}) != std::byte{0};
  uint64_t value = negative ? ~uint64_t{0} : 0;
  for (size_t i = digits.size(); i-- > 0;) value = (value << 8) | std::to_integer<uint64_t>(digits[i]);
  push_value(PickleKind::kInt, static_cast<int64_t>(value));
}

// Big-endian, unlike everything else in a pickle.
void Machine::real() {
  uint64_t bits = 0;
  for (std::byte digit : cursor_.take(sizeof(bits), "float")) bits = (bits << 8) | std::to_integer<uint64_t>(digit);
  push_value(PickleKind::kFloat, std::bit_cast<double>(bits));
}

template <int kCount>
void Machine::small_tuple() {
  std::vector<PickleIndex> items(kCount);
  for (size_t i = kCount; i-- > 0;) items[i] = pop();
  push_value(PickleKind::kTuple, std::move(items));
}

void Machine::append_items(PickleKind kind, const char* wanted, const std::vector<PickleIndex>& items) {
  std::vector<PickleIndex>& target = top_items(kind, wanted);
  target.insert(target.end(), items.begin(), items.end());
}

void Machine::set_item() {
  PickleIndex value = pop();
  PickleIndex key = pop();
  append_items(PickleKind::kDict, "dict", {key, value});
}

void Machine::set_items() {
  std::vector<PickleIndex> items = pop_to_mark();
  if (items.size() % 2 != 0) fail("a key without a value");
  append_items(PickleKind::kDict, "dict", items);
}

void Machine::get_memo(uint64_t index) {
  if (index >= memo_.size() || memo_[index] == kNeverPut) fail(fmt::format("memo {} was never put", index));
  push(memo_[index]);
}

// Picklers number the memo consecutively, so an index cannot reach the pickle's length.
void Machine::put_memo(uint64_t index) {
  if (index >= bytes_.size()) fail(fmt::format("memo {}, must be below the pickle's {} B", index, bytes_.size()));
  if (index >= memo_.size()) memo_.resize(index + 1, kNeverPut);
  memo_[index] = top();
}

std::string_view Machine::read_line() {
  std::string_view rest = as_text(bytes_.subspan(cursor_.position())).substr(0, kMaxGlobalLineBytes);
  size_t end = rest.find('\n');
  if (end == std::string_view::npos) fail(fmt::format("no end of line within {} B", kMaxGlobalLineBytes));
  return cursor_.take_text(end + 1, "line").substr(0, end);
}

void Machine::global() {
  std::string_view module = read_line();
  push_global(module, read_line());
}

void Machine::stack_global() {
  const PickleValue& name = values_[pop()];
  const PickleValue& module = values_[pop()];
  if (name.kind != PickleKind::kText || module.kind != PickleKind::kText) fail("needs two texts");
  push_global(module.text(), name.text());
}

void Machine::push_global(std::string_view module, std::string_view name) {
  auto found = std::find_if(allowed_.begin(), allowed_.end(), [&](const PickleGlobal& candidate) {
    return candidate.module == module && candidate.name == name;
  });
  if (found == allowed_.end())
    fail(fmt::format(
        "global {} of module {} refused: only plain state dicts are read, and nothing in a file is ever executed",
        quoted_name(name), quoted_name(module)));
  push_value(PickleKind::kGlobal, static_cast<int64_t>(found - allowed_.begin()));
}

void Machine::reduce() {
  PickleIndex arguments = pop();
  PickleIndex callable = pop();
  if (values_[callable].kind != PickleKind::kGlobal || values_[arguments].kind != PickleKind::kTuple)
    fail("needs a global and a tuple of arguments");
  if (!allowed_[static_cast<size_t>(values_[callable].integer())].is_dict_class)
    return push_value(PickleKind::kCall, std::vector<PickleIndex>{callable, arguments});
  if (!values_[arguments].items().empty()) fail("a dict class called with arguments");
  push_empty<PickleKind::kDict>();
}

// Attributes on top of a dict (state_dict()'s _metadata) or of a rebuilt object are no weights: dropped.
void Machine::build() {
  pop();
  PickleKind kind = values_[top()].kind;
  if (kind != PickleKind::kDict && kind != PickleKind::kCall) fail("sets attributes of neither a dict nor a call");
}

// Framing only helps readers that buffer.
void Machine::frame() {
  auto length = cursor_.read<uint64_t>("frame length");
  if (length > cursor_.remaining()) fail(fmt::format("a frame of {} B, {} B remain", length, cursor_.remaining()));
}

}  // namespace

Pickle read_pickle(Bytes bytes, const std::string& where, std::span<const PickleGlobal> allowed) {
  return Machine(bytes, where, allowed).run();
}

}  // namespace thimble
