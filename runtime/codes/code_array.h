// code_array.h: the integer codes of a matrix, each in as few bytes as the largest of them needs: one, two or four.
// Nearly all matrices have codes of one byte, so that a quantized model takes a byte of memory for each weight. Copies
// share their codes until one of them changes: a model with other steps takes no second set of codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace thimble {

class CodeArray {
 public:
  CodeArray() = default;
  CodeArray(const CodeArray&) = default;
  CodeArray& operator=(const CodeArray&) = default;
  // What was moved from is empty.
  CodeArray(CodeArray&& other) : CodeArray() { codes_.swap(other.codes_); }
  CodeArray& operator=(CodeArray&& other) {
    CodeArray taken(std::move(other));
    codes_.swap(taken.codes_);
    return *this;
  }
  explicit CodeArray(std::span<const int32_t> codes) { append(codes); }
  CodeArray(const std::vector<int32_t>& codes) : CodeArray(std::span(codes)) {}
  explicit CodeArray(std::vector<int8_t> codes) : codes_(std::make_shared<Codes>(std::move(codes))) {}
  explicit CodeArray(std::vector<int16_t> codes) : codes_(std::make_shared<Codes>(std::move(codes))) {}
  CodeArray(std::initializer_list<int32_t> codes) : CodeArray(std::span(codes.begin(), codes.size())) {}

  // body(codes) with a std::span of const int8_t, int16_t or int32_t.
  template <typename Body>
  decltype(auto) visit(Body&& body) const {
    return std::visit([&](const auto& codes) -> decltype(auto) { return body(std::span(codes)); }, *codes_);
  }

  size_t size() const {
    return visit([](auto codes) { return codes.size(); });
  }
  bool empty() const { return size() == 0; }
  // Of each code: 1, 2 or 4, enough for all codes that were ever stored.
  size_t code_bytes() const {
    return visit([](auto codes) { return sizeof(codes[0]); });
  }
  // No code but 0.
  bool is_zero() const;
  // For single codes; visit() for many.
  int32_t operator[](size_t i) const {
    return visit([i](auto codes) { return int32_t{codes[i]}; });
  }

  // New codes are 0.
  void resize(size_t size);
  void append(std::span<const int32_t> codes);
  // Replaces codes.size() codes from number `first` on. All codes get wider where one of these needs it. Threads may
  // store different codes of an array that is wide enough, and that no other shares.
  void store(size_t first, std::span<const int32_t> codes);
  // So that all codes of some magnitude fit: 1, 2 or 4, of each code, as widest_bytes() has it.
  void widen(size_t bytes);
  static size_t widest_bytes(std::span<const int32_t> codes);
  // The inverse.
  void load(size_t first, std::span<int32_t> codes) const;

  // The same codes, whatever their bytes.
  friend bool operator==(const CodeArray& a, const CodeArray& b);

  // What it consists of, for who keeps it and reads it back.
  friend auto members(CodeArray& array) { return std::tie(*array.codes_); }

 private:
  using Codes = std::variant<std::vector<int8_t>, std::vector<int16_t>, std::vector<int32_t>>;

  // Not shared any more: for who is going to change them.
  Codes& own();

  std::shared_ptr<Codes> codes_ = std::make_shared<Codes>();  // never null
};

}  // namespace thimble
