// canonical_reader.h: reads JSON of which it is known how it is written: without spaces, keys ascending. What is not
// written so is refused, and no value is built that nobody asked for, which a JSON library cannot do as small.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace thimble {

// `text` and `where` must outlive the reader. Whatever is not as it is read is a FormatError(where, ...).
class CanonicalReader {
 public:
  CanonicalReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  bool is_at(char next) const { return at_ < text_.size() && text_[at_] == next; }
  // Steps over `part` where it is next.
  bool take(std::string_view part);
  void expect(std::string_view part);
  bool boolean();
  // `object` names what is read, for errors.
  uint64_t number(std::string_view object);
  std::string string(std::string_view object);
  // The text of an object, whose keys ascend in each object of it, nested kMaxDepth deep at most. That numbers are
  // written as they would be again is not looked at.
  std::string object(std::string_view object);
  // Nothing may follow.
  void finish() const;

  static constexpr int kMaxDepth = 64;  // as kMaxJsonDepth

 private:
  [[noreturn]] void refuse(std::string_view wanted) const;
  char next(std::string_view wanted) const;
  void skip_digits();
  void skip_number();
  void skip_value(int depth);
  void skip_object(int depth);
  void skip_array(int depth);
  uint32_t utf8_character();
  char escaped();

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

}  // namespace thimble
