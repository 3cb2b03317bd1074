// torch_file_builder.h: writes pickles, zip archives and whole torch files for the tests, as torch.save lays them out.
// Also used to damage them: a BuiltZip says where each structure lies.
#pragma once

#include <fmt/format.h>
#include <zlib.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/byte_cursor.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// Appends opcodes. Methods are named after what they push; op() takes any opcode.
class PickleBuilder {
 public:
  explicit PickleBuilder(int protocol = 2) { op(0x80).op(protocol); }

  PickleBuilder& op(int code) {
    bytes_.push_back(static_cast<std::byte>(code));
    return *this;
  }
  PickleBuilder& ops(std::string_view codes) {
    append_bytes(bytes_, as_bytes_of(codes));
    return *this;
  }
  template <typename T>
  PickleBuilder& little_endian(T value) {
    append_little_endian(bytes_, value);
    return *this;
  }
  PickleBuilder& text(std::string_view value) {  // BINUNICODE
    return op('X').little_endian(static_cast<uint32_t>(value.size())).ops(value);
  }
  PickleBuilder& integer(int64_t value) {  // LONG1
    return op(0x8a).op(8).little_endian(value);
  }
  PickleBuilder& integers(const Shape& values) {  // a tuple
    op('(');
    for (int64_t value : values) integer(value);
    return op('t');
  }
  PickleBuilder& global(std::string_view module, std::string_view name) {
    return op('c').ops(module).op('\n').ops(name).op('\n');
  }
  PickleBuilder& ordered_dict() { return global("collections", "OrderedDict").ops(")R"); }

  // ("storage", torch.<type>, key, "cpu", count) and BINPERSID
  PickleBuilder& storage(std::string_view type, std::string_view key, int64_t count) {
    bool untyped = type == "UntypedStorage";
    op('(').text("storage").global(untyped ? "torch.storage" : "torch", type).text(key).text("cpu").integer(count);
    return ops("tQ");
  }
  // _rebuild_tensor_v2 over a storage pushed by `storage`, which takes this builder.
  template <typename PushStorage>
  PickleBuilder& tensor(PushStorage push_storage, int64_t offset, const Shape& shape, const Shape& strides) {
    global("torch._utils", "_rebuild_tensor_v2").op('(');
    push_storage(*this);
    return integer(offset).integers(shape).integers(strides).op(0x89).ordered_dict().ops("tR");
  }
  PickleBuilder& tensor(std::string_view type, std::string_view key, int64_t count, int64_t offset, const Shape& shape,
                        const Shape& strides) {
    return tensor([&](PickleBuilder& self) { self.storage(type, key, count); }, offset, shape, strides);
  }

  ByteVector stop() {
    op('.');
    return bytes_;
  }
  const ByteVector& bytes() const { return bytes_; }

 private:
  ByteVector bytes_;
};

struct ZipPart {
  std::string name;
  ByteVector data;
};

struct ZipLayout {
  bool streamed = true;      // local headers hold zeros, data descriptors follow the data
  bool zip64_end = true;     // zip64 end record and locator
  bool wide_fields = false;  // sizes and offsets of the entries go through zip64 extra blocks
  size_t alignment = 64;     // of each entry's data, by an extra block of padding
  std::string comment = "";
};

struct BuiltZip {
  ByteVector bytes;
  std::map<std::string, size_t> local;    // name -> byte of its local header
  std::map<std::string, size_t> central;  // name -> byte of its directory entry
  size_t directory = 0;
  size_t zip64_end = 0;
  size_t locator = 0;
  size_t end = 0;
};

namespace builder_detail {

inline uint32_t crc_of(const ByteVector& data) {
  return static_cast<uint32_t>(::crc32_z(0, reinterpret_cast<const unsigned char*>(data.data()), data.size()));
}

// The fields that local header and directory entry share, from flags to extra length.
inline void append_common(ByteVector& out, const ZipPart& part, const ZipLayout& layout, bool zeros, size_t extra) {
  append_little_endian(out, static_cast<uint16_t>(layout.streamed ? 0x0808 : 0x0800));
  append_little_endian(out, uint16_t{0});  // stored
  append_little_endian(out, uint32_t{0});  // time and date
  append_little_endian(out, zeros ? uint32_t{0} : crc_of(part.data));
  uint32_t size_field = layout.wide_fields ? 0xffffffff : zeros ? 0 : static_cast<uint32_t>(part.data.size());
  append_little_endian(out, size_field);
  append_little_endian(out, size_field);
  append_little_endian(out, static_cast<uint16_t>(part.name.size()));
  append_little_endian(out, static_cast<uint16_t>(extra));
}

inline void append_wide(ByteVector& out, std::initializer_list<uint64_t> values) {
  append_little_endian(out, uint16_t{1});
  append_little_endian(out, static_cast<uint16_t>(8 * values.size()));
  for (uint64_t value : values) append_little_endian(out, value);
}

inline void append_local(ByteVector& out, const ZipPart& part, const ZipLayout& layout) {
  constexpr size_t kFixedBytes = 30;
  constexpr size_t kWideBytes = 20;
  constexpr size_t kPaddingHeaderBytes = 4;
  size_t wide = layout.wide_fields ? kWideBytes : 0;
  size_t data_at = out.size() + kFixedBytes + part.name.size() + wide + kPaddingHeaderBytes;
  size_t padding = (layout.alignment - data_at % layout.alignment) % layout.alignment;
  append_little_endian(out, uint32_t{0x04034b50});
  append_little_endian(out, uint16_t{0});
  append_common(out, part, layout, layout.streamed, wide + kPaddingHeaderBytes + padding);
  append_bytes(out, as_bytes_of(part.name));
  uint64_t size = layout.streamed ? 0 : part.data.size();
  if (layout.wide_fields) append_wide(out, {size, size});
  append_bytes(out, as_bytes_of("FB"));
  append_little_endian(out, static_cast<uint16_t>(padding));
  out.insert(out.end(), padding, std::byte{'Z'});
  append_bytes(out, part.data);
  if (!layout.streamed) return;
  append_little_endian(out, uint32_t{0x08074b50});
  append_little_endian(out, crc_of(part.data));
  for (int i = 0; i < 2; ++i)
    layout.wide_fields ? append_little_endian(out, uint64_t{part.data.size()})
                       : append_little_endian(out, static_cast<uint32_t>(part.data.size()));
}

inline void append_central(ByteVector& out, const ZipPart& part, const ZipLayout& layout, size_t local_at) {
  append_little_endian(out, uint32_t{0x02014b50});
  append_little_endian(out, uint32_t{0});
  append_common(out, part, layout, false, layout.wide_fields ? 28 : 0);
  append_little_endian(out, uint16_t{0});  // comment
  append_little_endian(out, uint16_t{0});  // disk
  append_little_endian(out, uint16_t{0});  // attributes
  append_little_endian(out, uint32_t{0});
  append_little_endian(out, layout.wide_fields ? 0xffffffff : static_cast<uint32_t>(local_at));
  append_bytes(out, as_bytes_of(part.name));
  if (layout.wide_fields) append_wide(out, {part.data.size(), part.data.size(), local_at});
}

inline void append_zip64_end(ByteVector& out, size_t parts, size_t directory_bytes, size_t directory) {
  size_t record_at = out.size();
  append_little_endian(out, uint32_t{0x06064b50});
  append_little_endian(out, uint64_t{44});
  append_little_endian(out, uint32_t{0x002d031e});  // versions
  append_little_endian(out, uint64_t{0});           // disks
  append_little_endian(out, uint64_t{parts});
  append_little_endian(out, uint64_t{parts});
  append_little_endian(out, uint64_t{directory_bytes});
  append_little_endian(out, uint64_t{directory});
  append_little_endian(out, uint32_t{0x07064b50});
  append_little_endian(out, uint32_t{0});
  append_little_endian(out, uint64_t{record_at});
  append_little_endian(out, uint32_t{1});
}

}  // namespace builder_detail

inline BuiltZip build_zip(const std::vector<ZipPart>& parts, const ZipLayout& layout = {}) {
  BuiltZip zip;
  ByteVector& out = zip.bytes;
  for (const ZipPart& part : parts) {
    zip.local[part.name] = out.size();
    builder_detail::append_local(out, part, layout);
  }
  zip.directory = out.size();
  for (const ZipPart& part : parts) {
    zip.central[part.name] = out.size();
    builder_detail::append_central(out, part, layout, zip.local[part.name]);
  }
  size_t directory_bytes = out.size() - zip.directory;
  if (layout.zip64_end) {
    zip.zip64_end = out.size();
    zip.locator = out.size() + 56;
    builder_detail::append_zip64_end(out, parts.size(), directory_bytes, zip.directory);
  }
  zip.end = out.size();
  append_little_endian(out, uint32_t{0x06054b50});
  append_little_endian(out, uint32_t{0});  // disks
  append_little_endian(out, static_cast<uint16_t>(parts.size()));
  append_little_endian(out, static_cast<uint16_t>(parts.size()));
  append_little_endian(out, static_cast<uint32_t>(directory_bytes));
  append_little_endian(out, static_cast<uint32_t>(zip.directory));
  append_little_endian(out, static_cast<uint16_t>(layout.comment.size()));
  append_bytes(out, as_bytes_of(layout.comment));
  return zip;
}

// The parts that torch.save writes around a pickle and its storages (key -> bytes).
inline std::vector<ZipPart> torch_parts(const ByteVector& pickle, const std::map<std::string, ByteVector>& storages) {
  auto part = [](std::string_view name, std::string_view text) {
    Bytes bytes = as_bytes_of(text);
    return ZipPart{fmt::format("model/{}", name), ByteVector(bytes.begin(), bytes.end())};
  };
  std::vector<ZipPart> parts = {{"model/data.pkl", pickle}, part(".format_version", "1"), part("byteorder", "little")};
  for (const auto& [key, data] : storages) parts.push_back({"model/data/" + key, data});
  parts.push_back(part("version", "3\n"));
  parts.push_back(part(".data/serialization_id", "0576913455360959661309832745077245320561"));
  return parts;
}

}  // namespace thimble
