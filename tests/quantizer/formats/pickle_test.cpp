// pickle_test.cpp: pickles as Python writes them in protocols 2 to 5, every opcode, and hostile streams.
#include "quantizer/formats/pickle.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/quantizer/formats/reader_asserts.h"
#include "tests/quantizer/formats/torch_file_builder.h"

namespace thimble::pickle_test {
namespace {

using namespace std::string_view_literals;

constexpr PickleGlobal kAllowed[] = {{"collections", "OrderedDict", true},
                                     {"_codecs", "encode"},
                                     {"__builtin__", "set"},
                                     {"builtins", "set"},
                                     {"torch", "FloatStorage"}};

Pickle parse(Bytes bytes) { return read_pickle(bytes, "m.pt: data.pkl", kAllowed); }

// Python's repr, with '...' below `depth` levels.
std::string show(const Pickle& pickle, PickleIndex index, int depth = 8) {
  const PickleValue& value = pickle[index];
  auto list = [&](const char* open, const char* close) {
    std::string text = open;
    for (size_t i = 0; i < value.items().size(); ++i)
      text += (i ? ", " : "") + show(pickle, value.items()[i], depth - 1);
    return text + close;
  };
  if (depth == 0) return "...";
  switch (value.kind) {
    case PickleKind::kNone: return "None";
    case PickleKind::kBool: return value.integer() ? "True" : "False";
    case PickleKind::kInt: return std::to_string(value.integer());
    case PickleKind::kFloat: return fmt::format("{}", value.real());
    case PickleKind::kText: return "'" + std::string(value.text()) + "'";
    case PickleKind::kOpaque: return "opaque";
    case PickleKind::kTuple: return list("(", ")");
    case PickleKind::kList: return list("[", "]");
    case PickleKind::kSet: return list("set(", ")");
    case PickleKind::kGlobal: return std::string(kAllowed[value.integer()].name);
    case PickleKind::kCall: return list("call(", ")");
    case PickleKind::kPersistent: return list("id(", ")");
    case PickleKind::kDict: break;
  }
  std::string text = "{";
  for (size_t i = 0; i < value.items().size(); i += 2)
    text += (i ? ", " : "") + show(pickle, value.items()[i], depth - 1) + ": " +
            show(pickle, value.items()[i + 1], depth - 1);
  return text + "}";
}

std::string parsed(const ByteVector& bytes) {
  Pickle pickle = parse(bytes);
  return show(pickle, pickle.root);
}

// The value that `codes` leave, in a pickle of protocol 4.
std::string value_of(std::string_view codes) { return parsed(PickleBuilder(4).ops(codes).stop()); }

void expect_error(const std::string& part, std::string_view codes) {
  expect_format_error(part, [&] { parse(PickleBuilder(4).ops(codes).stop()); });
}

// pickle.dumps(value, protocol) of the value below, by CPython 3.
constexpr std::string_view kPython2 =
    "\200\002]q\000(N\210\211K\000K\377M\377\377J\220\356\376\377\212\006\000\000\000\000\000\001\212\010\000\000"
    "\000\000\000\000\000\200\212\011\000\000\000\000\000\000\000\200\000G\077\370\000\000\000\000\000\000X\004"
    "\000\000\000textq\001c_codecs\012encode\012q\002X\003\000\000\000rawq\003X\006\000\000\000latin1q\004\206q"
    "\005Rq\006)K\001\205q\007K\001K\002\206q\010K\001K\002K\003\207q\011(K\001K\002K\003K\004tq\012]q\013}q\014}"
    "q\015(X\001\000\000\000kq\016]q\017K\001aX\001\000\000\000lq\020}q\021X\001\000\000\000mq\022Nsuccollections"
    "\012OrderedDict\012q\023)Rq\024X\001\000\000\000aq\025K\001sc__builtin__\012set\012q\026]q\027K\007a\205q"
    "\030Rq\031]q\032K\001ah\032h\001]q\033h\033\205q\034ae."sv;
constexpr std::string_view kPython3 =
    "\200\003]q\000(N\210\211K\000K\377M\377\377J\220\356\376\377\212\006\000\000\000\000\000\001\212\010\000\000"
    "\000\000\000\000\000\200\212\011\000\000\000\000\000\000\000\200\000G\077\370\000\000\000\000\000\000X\004"
    "\000\000\000textq\001C\003rawq\002)K\001\205q\003K\001K\002\206q\004K\001K\002K\003\207q\005(K\001K\002K\003"
    "K\004tq\006]q\007}q\010}q\011(X\001\000\000\000kq\012]q\013K\001aX\001\000\000\000lq\014}q\015X\001\000\000"
    "\000mq\016Nsuccollections\012OrderedDict\012q\017)Rq\020X\001\000\000\000aq\021K\001scbuiltins\012set\012q"
    "\022]q\023K\007a\205q\024Rq\025]q\026K\001ah\026h\001]q\027h\027\205q\030ae."sv;
constexpr std::string_view kPython4 =
    "\200\004\225\300\000\000\000\000\000\000\000]\224(N\210\211K\000K\377M\377\377J\220\356\376\377\212\006\000"
    "\000\000\000\000\001\212\010\000\000\000\000\000\000\000\200\212\011\000\000\000\000\000\000\000\200\000G"
    "\077\370\000\000\000\000\000\000\214\004text\224C\003raw\224)K\001\205\224K\001K\002\206\224K\001K\002K\003"
    "\207\224(K\001K\002K\003K\004t\224]\224}\224}\224(\214\001k\224]\224K\001a\214\001l\224}\224\214\001m\224Nsu"
    "\214\013collections\224\214\013OrderedDict\224\223\224)R\224\214\001a\224K\001s\217\224(K\007\220]\224K\001a"
    "h\025h\001]\224h\026\205\224ae."sv;
constexpr std::string_view kPython5 =
    "\200\005\225\300\000\000\000\000\000\000\000]\224(N\210\211K\000K\377M\377\377J\220\356\376\377\212\006\000"
    "\000\000\000\000\001\212\010\000\000\000\000\000\000\000\200\212\011\000\000\000\000\000\000\000\200\000G"
    "\077\370\000\000\000\000\000\000\214\004text\224C\003raw\224)K\001\205\224K\001K\002\206\224K\001K\002K\003"
    "\207\224(K\001K\002K\003K\004t\224]\224}\224}\224(\214\001k\224]\224K\001a\214\001l\224}\224\214\001m\224Nsu"
    "\214\013collections\224\214\013OrderedDict\224\223\224)R\224\214\001a\224K\001s\217\224(K\007\220]\224K\001a"
    "h\025h\001]\224h\026\205\224ae."sv;

constexpr std::string_view kPythonValue =
    "[None, True, False, 0, 255, 65535, -70000, 1099511627776, -9223372036854775808, opaque, 1.5, 'text', {}, (), (1), "
    "(1, 2), (1, 2, 3), (1, 2, 3, 4), [], {{}}, {{'k': [1], 'l': {{'m': None}}}}, {{'a': 1}}, {}, [1], [1], 'text', "
    "{}]";

struct PythonCase {
  std::string_view bytes;
  const char* raw;
  const char* set;
};

class PythonPickle : public ::testing::TestWithParam<PythonCase> {};

TEST_P(PythonPickle, GivesTheValuesBack) {
  const PythonCase& param = GetParam();
  Pickle pickle = parse(as_bytes_of(param.bytes));
  EXPECT_EQ(show(pickle, pickle.root),
            fmt::format(fmt::runtime(kPythonValue), param.raw, param.set, "[([([([...])])])]"));
  const std::vector<PickleIndex>& items = pickle[pickle.root].items();
  EXPECT_EQ(items[items.size() - 4], items[items.size() - 3]);  // the shared list is one value
}

TEST_P(PythonPickle, TruncationAtEveryByteIsAnError) {
  for (size_t size = 0; size < GetParam().bytes.size(); ++size)
    EXPECT_THROW(parse(as_bytes_of(GetParam().bytes.substr(0, size))), FormatError) << size;
}

TEST_P(PythonPickle, DamageAtEveryByteIsAnErrorOrPlainData) {
  for (size_t at = 0; at < GetParam().bytes.size(); ++at)
    for (int mask : {0x01, 0x80, 0xff}) {
      std::string damaged(GetParam().bytes);
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      try {
        Pickle pickle = parse(as_bytes_of(damaged));
        EXPECT_LE(pickle.values.size(), damaged.size());
        EXPECT_FALSE(show(pickle, pickle.root).empty());
      } catch (const FormatError&) {
      }
    }
}

constexpr const char* kBytesInProtocol2 = "call(encode, ('raw', 'latin1'))";
INSTANTIATE_TEST_SUITE_P(Protocols, PythonPickle,
                         ::testing::Values(PythonCase{kPython2, kBytesInProtocol2, "call(set, ([7]))"},
                                           PythonCase{kPython3, "opaque", "call(set, ([7]))"},
                                           PythonCase{kPython4, "opaque", "set(7)"},
                                           PythonCase{kPython5, "opaque", "set(7)"}));

struct OpcodeCase {
  std::string_view codes;
  const char* value;
};

TEST(Pickle, OpcodesGiveTheirValues) {
  const OpcodeCase cases[] = {
      // scalars
      {"J\xff\xff\xff\xff"sv, "-1"},
      {"\x8a\x00"sv, "0"},
      {"\x8a\x01\x80"sv, "-128"},
      {"\x8a\x02\x80\x00"sv, "128"},
      {"\x8b\x02\x00\x00\x00\xff\x7f"sv, "32767"},
      {"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01"sv, "opaque"},
      {"G\xc0\x00\x00\x00\x00\x00\x00\x00"sv, "-2"},
      // texts and bytes of every length
      {"X\x02\x00\x00\x00hi"sv, "'hi'"},
      {"\x8c\x02hi"sv, "'hi'"},
      {"\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi"sv, "'hi'"},
      {"T\x02\x00\x00\x00hi"sv, "'hi'"},
      {"U\x02hi"sv, "'hi'"},
      {"B\x02\x00\x00\x00hi"sv, "opaque"},
      {"C\x02hi"sv, "opaque"},
      {"\x8e\x02\x00\x00\x00\x00\x00\x00\x00hi"sv, "opaque"},
      {"\x96\x02\x00\x00\x00\x00\x00\x00\x00hi"sv, "opaque"},
      // containers
      {"]Na", "[None]"},
      {"](NNe", "[None, None]"},
      {"}K\x01Ns", "{1: None}"},
      {"}(K\x01NK\x02Nu", "{1: None, 2: None}"},
      {"\x8f(NN\x90", "set(None, None)"},
      {"(NN\x91", "set(None, None)"},
      {"(t", "()"},
      {"N(NN1", "None"},
      {"NN0", "None"},
      {"N(0", "None"},
  };
  for (const OpcodeCase& opcode : cases) EXPECT_EQ(value_of(opcode.codes), opcode.value);
}

TEST(Pickle, MemoKeepsIdentity) {
  EXPECT_EQ(value_of("]q\x00h\x00\x86"sv), "([], [])");
  EXPECT_EQ(value_of("]r\x01\x00\x00\x00j\x01\x00\x00\x00\x86"sv), "([], [])");
  EXPECT_EQ(value_of("]\x94h\x00Na0"sv), "[None]");
  EXPECT_EQ(value_of("]q\x00}q\x00h\x00\x87"sv), "([], {}, {})");
  expect_error("opcode BINGET (0x68): memo 0 was never put", "h\x00"sv);
  expect_error("opcode LONG_BINGET (0x6a): memo 1 was never put", "Nq\x02j\x01\x00\x00\x00"sv);
  expect_error("opcode LONG_BINPUT (0x72): memo 4294967295, must be below the pickle's 9 B", "Nr\xff\xff\xff\xff"sv);
  expect_error("opcode BINPUT (0x71): needs a value", "q\x00"sv);
  expect_error("opcode MEMOIZE (0x94): needs a value", "\x94");
}

TEST(Pickle, CallsAreRecordedNotMade) {
  EXPECT_EQ(value_of("c_codecs\nencode\n)R"), "call(encode, ())");
  EXPECT_EQ(value_of("\x8c\x07_codecs\x8c\x06"
                     "encode\x93N\x85R"),
            "call(encode, (None))");
  EXPECT_EQ(value_of("ccollections\nOrderedDict\n)RK\x01Ns"), "{1: None}");
  EXPECT_EQ(value_of("N\x85Q"), "id((None))");
  EXPECT_EQ(value_of("}}b"), "{}");
  EXPECT_EQ(value_of("c_codecs\nencode\n)RNb"), "call(encode, ())");
}

TEST(Pickle, GlobalsOutsideTheListAreRefused) {
  expect_error(
      "m.pt: data.pkl: byte 2: opcode GLOBAL (0x63): global 'system' of module 'posix' refused: only plain state dicts "
      "are read, and nothing in a file is ever executed",
      "cposix\nsystem\nX\x02\x00\x00\x00ls\x85R"sv);
  expect_error("global 'eval' of module 'builtins' refused",
               "\x8c\x08"
               "builtins\x8c\x04"
               "eval\x93");
  expect_error("global 'OrderedDict.x' of module 'collections' refused", "ccollections\nOrderedDict.x\n");
  expect_error("global '' of module 'collections' refused", "ccollections\n\n");
  expect_error("no end of line within 256 B", "c" + std::string(256, 'm') + "\nname\n");
  expect_error("no end of line within 256 B", "ccollections");
  expect_error("opcode STACK_GLOBAL (0x93): needs two texts",
               "N\x8c\x04"
               "eval\x93");
  expect_error("opcode STACK_GLOBAL (0x93): needs two texts",
               "\x8c\x04"
               "evalN\x93");
}

TEST(Pickle, OpcodesOutsideTheListAreRefused) {
  for (auto [codes, name] :
       {std::pair{"2", "DUP (0x32)"},      {"F1\n", "FLOAT (0x46)"},       {"I1\n", "INT (0x49)"},
        {"L1\n", "LONG (0x4c)"},           {"Pid\n", "PERSID (0x50)"},     {"S''\n", "STRING (0x53)"},
        {"Vx\n", "UNICODE (0x56)"},        {"(d", "DICT (0x64)"},          {"g0\n", "GET (0x67)"},
        {"(ios\nsystem\n", "INST (0x69)"}, {"(l", "LIST (0x6c)"},          {"(o", "OBJ (0x6f)"},
        {"Np0\n", "PUT (0x70)"},           {"\x80\x02", "PROTO (0x80)"},   {"\x81", "NEWOBJ (0x81)"},
        {"\x82\x01", "EXT1 (0x82)"},       {"\x83\x01", "EXT2 (0x83)"},    {"\x84\x01", "EXT4 (0x84)"},
        {"\x92", "NEWOBJ_EX (0x92)"},      {"\x97", "NEXT_BUFFER (0x97)"}, {"\x98", "READONLY_BUFFER (0x98)"},
        {"\xff", "unknown (0xff)"},        {"\n", "unknown (0x0a)"}})
    expect_error(std::string("opcode ") + name + ": refused: only plain state dicts are read", codes);
}

TEST(Pickle, OperandsMustHaveTheRightKind) {
  expect_error("opcode APPEND (0x61): the value below is not a list", "NNa");
  expect_error("opcode APPENDS (0x65): the value below is not a list", "}(Ne");
  expect_error("opcode ADDITEMS (0x90): the value below is not a set", "](N\x90");
  expect_error("opcode SETITEM (0x73): the value below is not a dict", "]NNs");
  expect_error("opcode SETITEMS (0x75): a key without a value", "}(Nu");
  expect_error("opcode REDUCE (0x52): needs a global and a tuple", "N)R");
  expect_error("opcode REDUCE (0x52): needs a global and a tuple", "c_codecs\nencode\n]R");
  expect_error("opcode REDUCE (0x52): a dict class called with arguments", "ccollections\nOrderedDict\n]\x85R");
  expect_error("opcode BUILD (0x62): sets attributes of neither", "NNb");
}

TEST(Pickle, TheStackIsNeverUnderrun) {
  for (std::string_view codes : {"0", "a",    "Na", "s",   "\x85", "N\x86",   "NN\x87", "R",   ")R", "b", "Nb",
                                 "Q", "\x93", "(a", "N(a", "N(Na", "N(N\x86", "N(R",    "N(Q", "(e", "(u"})
    expect_error("needs a value, the stack has none", codes);
  for (std::string_view codes : {"1", "t", "Nt", "]e", "}u", "\x91", "\x8f\x90"}) expect_error("needs a mark", codes);
}

TEST(Pickle, StopLeavesOneValueAndNothingBehind) {
  expect_error("opcode STOP (0x2e): 0 values and 0 marks left, must be 1 and 0", "");
  expect_error("2 values and 0 marks", "NN");
  expect_error("1 value and 1 mark", "N(");
  expect_error("1 B follow the end of the pickle", "N.");
}

TEST(Pickle, StartsWithItsProtocol) {
  auto expect_start_error = [](const std::string& part, std::string_view bytes) {
    expect_format_error(part, [&] { parse(as_bytes_of(bytes)); });
  };
  expect_start_error("does not start with opcode PROTO", "(dp0\n."sv);
  expect_start_error("pickle protocol 1, allowed are 2 to 5", "\x80\x01N."sv);
  expect_start_error("pickle protocol 6, allowed are 2 to 5", "\x80\x06N."sv);
  expect_start_error("m.pt: data.pkl: truncated at byte 0", ""sv);
  expect_start_error("opcode needs 1 B, 0 B remain", "\x80\x02N"sv);
}

TEST(Pickle, LengthsAreBoundedByWhatRemains) {
  expect_error("text needs 4294967295 B", "X\xff\xff\xff\xff"sv);
  expect_error("text needs 18446744073709551615 B", "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"sv);
  expect_error("bytes needs 9223372036854775807 B", "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"sv);
  expect_error("integer needs 4294967295 B", "\x8b\xff\xff\xff\xff"sv);
  expect_error("opcode FRAME (0x95): a frame of 255 B, 2 B remain", "\x95\xff\x00\x00\x00\x00\x00\x00\x00N"sv);
}

TEST(Pickle, StackDepthIsLimited) {
  std::string many(kMaxPickleStack, 'N');
  expect_error("opcode MARK (0x28): more than 1048576 values at once", many + "(");
  expect_error("opcode NONE (0x4e): more than 1048576 values at once", many + "N");
  EXPECT_EQ(value_of("(" + many.substr(1) + "t0N"), "None");
}

TEST(Pickle, DeepNestingNeedsNoRecursion) {
  constexpr size_t kDepth = 500'000;
  ByteVector bytes = PickleBuilder().op(')').ops(std::string(kDepth, '\x85')).stop();
  Pickle pickle = parse(bytes);
  EXPECT_EQ(pickle.values.size(), kDepth + 1);
}

TEST(Pickle, LengthIsLimited) {
  ByteVector bytes(kMaxPickleBytes + 1);
  expect_format_error("pickle of 4194305 B, at most 4194304 B allowed: save model.state_dict() alone",
                      [&] { parse(bytes); });
}

}  // namespace
}  // namespace thimble::pickle_test
