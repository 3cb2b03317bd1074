// code_array.cpp: see code_array.h.
#include "runtime/codes/code_array.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace thimble {

CodeArray::Codes& CodeArray::own() {
  if (codes_.use_count() > 1) codes_ = std::make_shared<Codes>(*codes_);
  return *codes_;
}

// Each negative code counts as the positive one that takes as many bits: one or, which is as large as the largest.
size_t CodeArray::widest_bytes(std::span<const int32_t> codes) {
  int32_t widest = 0;
  for (int32_t code : codes) widest |= code < 0 ? ~code : code;
  return widest <= std::numeric_limits<int8_t>::max() ? 1 : widest <= std::numeric_limits<int16_t>::max() ? 2 : 4;
}

void CodeArray::widen(size_t bytes) {
  if (bytes <= code_bytes()) return;
  visit([&](auto narrow) {
    if (bytes == 2) codes_ = std::make_shared<Codes>(std::vector<int16_t>(narrow.begin(), narrow.end()));
    if (bytes == 4) codes_ = std::make_shared<Codes>(std::vector<int32_t>(narrow.begin(), narrow.end()));
  });
}

bool CodeArray::is_zero() const {
  return visit([](auto codes) { return std::ranges::all_of(codes, [](auto code) { return code == 0; }); });
}

void CodeArray::resize(size_t size) {
  std::visit([size](auto& codes) { codes.resize(size); }, own());
}

void CodeArray::append(std::span<const int32_t> codes) {
  const size_t first = size();
  resize(first + codes.size());
  store(first, codes);
}

void CodeArray::store(size_t first, std::span<const int32_t> codes) {
  assert(first + codes.size() <= size());
  widen(widest_bytes(codes));
  std::visit(
      [&]<typename N>(std::vector<N>& own) {
        std::ranges::transform(codes, own.begin() + static_cast<std::ptrdiff_t>(first),
                               [](int32_t code) { return static_cast<N>(code); });
      },
      own());
}

void CodeArray::load(size_t first, std::span<int32_t> codes) const {
  visit([&](auto own) { std::ranges::copy(own.subspan(first, codes.size()), codes.begin()); });
}

bool operator==(const CodeArray& a, const CodeArray& b) {
  if (a.codes_ == b.codes_) return true;
  return a.visit([&](auto left) { return b.visit([&](auto right) { return std::ranges::equal(left, right); }); });
}

}  // namespace thimble
