// gguf_file_builder.h: GGUF files byte by byte, right ones and wrong ones, without the program's writer.
#pragma once

#include <bit>
#include <string>
#include <vector>

#include "runtime/base/byte_cursor.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

constexpr uint32_t kGgufU8 = 0, kGgufI8 = 1, kGgufU16 = 2, kGgufI16 = 3, kGgufU32 = 4, kGgufI32 = 5, kGgufF32 = 6,
                   kGgufBool = 7, kGgufText = 8, kGgufArray = 9, kGgufU64 = 10, kGgufI64 = 11, kGgufF64 = 12;
constexpr uint32_t kGgufTensorF32 = 0, kGgufTensorF16 = 1, kGgufTensorQ8 = 8, kGgufTensorQ4K = 12, kGgufTensorBF16 = 30;

inline void append_gguf_text(ByteVector& out, std::string_view text) {
  append_little_endian(out, uint64_t{text.size()});
  append_bytes(out, as_bytes_of(text));
}

struct GgufTensorSpec {
  std::string name;
  Shape shape;  // outermost first
  uint32_t type = kGgufTensorF32;
  ByteVector bytes = {};
  int64_t moved = 0;  // added to the offset
};

class GgufBuilder {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;                    // of the data; add the key as well
  int64_t extra_tensors = 0, extra_keys = 0;  // that the header counts

  GgufBuilder& raw(const std::string& key, uint32_t type, Bytes value) {
    append_gguf_text(keys_, key);
    append_little_endian(keys_, type);
    append_bytes(keys_, value);
    ++key_count_;
    return *this;
  }
  GgufBuilder& text(const std::string& key, const std::string& value) {
    ByteVector bytes = {};
    append_gguf_text(bytes, value);
    return raw(key, kGgufText, bytes);
  }
  GgufBuilder& u32(const std::string& key, uint32_t value) { return number(key, kGgufU32, value); }
  GgufBuilder& f32(const std::string& key, float value) {
    return number(key, kGgufF32, std::bit_cast<uint32_t>(value));
  }
  template <typename T>
  GgufBuilder& number(const std::string& key, uint32_t type, T value) {
    ByteVector bytes = {};
    append_little_endian(bytes, value);
    return raw(key, type, bytes);
  }
  // Elements of one byte each.
  GgufBuilder& array(const std::string& key, uint32_t type, uint64_t count, Bytes elements) {
    ByteVector bytes = {};
    append_little_endian(bytes, type);
    append_little_endian(bytes, count);
    append_bytes(bytes, elements);
    return raw(key, kGgufArray, bytes);
  }
  GgufBuilder& texts(const std::string& key, const std::vector<std::string>& values) {
    ByteVector elements;
    for (const std::string& value : values) append_gguf_text(elements, value);
    return array(key, kGgufText, values.size(), elements);
  }
  GgufBuilder& i32s(const std::string& key, const std::vector<int32_t>& values) {
    ByteVector elements;
    for (const int32_t value : values) append_little_endian(elements, value);
    return array(key, kGgufI32, values.size(), elements);
  }
  GgufBuilder& f32s(const std::string& key, const std::vector<float>& values) {
    ByteVector elements;
    for (const float value : values) append_little_endian(elements, std::bit_cast<uint32_t>(value));
    return array(key, kGgufF32, values.size(), elements);
  }
  GgufBuilder& tensor(GgufTensorSpec spec) {
    tensors_.push_back(std::move(spec));
    return *this;
  }

  size_t header_bytes() const { return header().size(); }
  ByteVector build() const {
    ByteVector file = header();
    file.resize(aligned(file.size()));
    const size_t data = file.size();
    for (const GgufTensorSpec& tensor : tensors_) {
      file.resize(data + aligned(file.size() - data));
      append_bytes(file, tensor.bytes);
    }
    return file;
  }

 private:
  size_t aligned(size_t size) const { return (size + alignment - 1) / alignment * alignment; }

  ByteVector header() const {
    ByteVector out;
    append_bytes(out, as_bytes_of("GGUF"));
    append_little_endian(out, version);
    append_little_endian(out, static_cast<int64_t>(tensors_.size()) + extra_tensors);
    append_little_endian(out, static_cast<int64_t>(key_count_) + extra_keys);
    append_bytes(out, keys_);
    size_t offset = 0;
    for (const GgufTensorSpec& tensor : tensors_) {
      append_gguf_text(out, tensor.name);
      append_little_endian(out, static_cast<uint32_t>(tensor.shape.size()));
      for (size_t i = tensor.shape.size(); i-- > 0;) append_little_endian(out, tensor.shape[i]);
      append_little_endian(out, tensor.type);
      offset = aligned(offset);
      append_little_endian(out, static_cast<int64_t>(offset) + tensor.moved);
      offset += tensor.bytes.size();
    }
    return out;
  }

  ByteVector keys_;
  uint64_t key_count_ = 0;
  std::vector<GgufTensorSpec> tensors_;
};

}  // namespace thimble
