// charsmap_check.cpp: walks every path of the double-array trie that a text could lead the library along.
#include "eval/text/charsmap_check.h"

#include <algorithm>
#include <vector>

namespace thimble {
namespace {

constexpr uint32_t kLabels = 256;

// One element of a Darts-clone double array, taken apart.
struct Unit {
  uint32_t bits;
  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  uint32_t value() const { return bits & 0x7FFFFFFF; }
  uint32_t label() const { return bits & 0x800000FF; }  // of a leaf: never a byte
  uint32_t offset() const { return (bits >> 10) << ((bits & (1U << 9)) >> 6); }
};

class TrieWalk {
 public:
  TrieWalk(std::vector<Unit> units, Bytes replacements, const std::string& path)
      : units_(std::move(units)), replacements_(replacements), path_(path), nested_(units_.size(), kUnvisited) {}

  // Depth first from the root. A state is the base from which the unit of each next byte is found; the trie may
  // share states (it is a DAWG) but must not loop. nested_[base] becomes the most rules that match on one path on.
  void run() {
    std::vector<Frame> stack;
    enter(stack, units_[0].offset());
    while (!stack.empty()) {
      Frame& frame = stack.back();
      if (frame.next_label == kLabels) {
        nested_[frame.base] = frame.most_nested;
        stack.pop_back();
        continue;
      }
      uint32_t position = frame.base ^ frame.next_label;
      const Unit unit = units_[position];
      if (unit.label() != frame.next_label) {
        ++frame.next_label;
        continue;
      }
      uint32_t child = position ^ unit.offset();
      if (child < nested_.size() && nested_[child] == kOpen) fail("loops");
      if (child >= nested_.size() || nested_[child] == kUnvisited) {
        enter(stack, child);  // invalidates `frame`; this label is looked at again once the child is known
        continue;
      }
      int nested = nested_[child] + (unit.has_leaf() ? 1 : 0);
      if (unit.has_leaf()) check_replacement(units_[child].value());
      if (nested > kMaxNestedRules) fail("has more than " + std::to_string(kMaxNestedRules) + " nested rules");
      frame.most_nested = std::max(frame.most_nested, nested);
      ++frame.next_label;
    }
  }

 private:
  struct Frame {
    uint32_t base;
    uint32_t next_label = 0;
    int most_nested = 0;
  };
  static constexpr int kUnvisited = -1;
  static constexpr int kOpen = -2;

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(path_, "normaliser's character map " + what);
  }

  void enter(std::vector<Frame>& stack, uint32_t base) {
    if ((base | (kLabels - 1)) >= units_.size())
      fail("leads to unit " + std::to_string(base | (kLabels - 1)) + ", it has " + std::to_string(units_.size()));
    nested_[base] = kOpen;
    stack.push_back({base});
  }

  void check_replacement(uint32_t start) const {
    if (start >= replacements_.size())
      fail("refers to replacement byte " + std::to_string(start) + ", it has " + std::to_string(replacements_.size()));
    Bytes text = replacements_.subspan(start);
    if (text.size() > kMaxReplacementBytes) text = text.first(kMaxReplacementBytes);
    if (std::find(text.begin(), text.end(), std::byte{0}) == text.end())
      fail("holds a replacement text without an end within " + std::to_string(kMaxReplacementBytes) + " B");
  }

  std::vector<Unit> units_;
  Bytes replacements_;
  const std::string& path_;
  std::vector<int> nested_;  // per base
};

}  // namespace

void check_charsmap(Bytes charsmap, const std::string& path) {
  ByteCursor cursor(charsmap, path);
  auto trie_bytes = cursor.read<uint32_t>("size of the character map's trie");
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0)
    throw FormatError(
        path, "the character map's trie has " + std::to_string(trie_bytes) + " B, must be a positive multiple of 4");
  ByteCursor trie(cursor.take(trie_bytes, "the character map's trie"), path);
  std::vector<Unit> units(trie_bytes / sizeof(uint32_t));
  for (Unit& unit : units) unit.bits = trie.read<uint32_t>("trie unit");
  TrieWalk(std::move(units), cursor.take(cursor.remaining(), "replacement texts"), path).run();
}

}  // namespace thimble
