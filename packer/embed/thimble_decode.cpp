// thimble_decode.cpp: the C interface. What C++ throws becomes a status and a text here.
#include "packer/embed/thimble_decode.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "packer/embed/tensor_reader.h"
#include "runtime/base/hash.h"

using thimble::ArtifactBytes;
using thimble::Bytes;
using thimble::fill_text;
using thimble::FormatError;
using thimble::TensorEntry;
using thimble::TensorReader;
using thimble::UsageError;

namespace {

const char* name_or_default(const char* name) { return name != nullptr ? name : "artifact"; }

}  // namespace

struct thimble_artifact {
  thimble_artifact(const ArtifactBytes& file, const char* name) : reader(file, name_or_default(name)) {
    for (const TensorEntry& entry : reader.header().tensors) stored_as.push_back(precision_name(entry));
  }

  TensorReader reader;
  std::vector<std::string> stored_as;
  std::optional<thimble::Hasher> hasher;  // of the file, once a check has begun
  uint64_t checked_bytes = 0;
};

namespace {

void put_text(thimble_error* error, std::string_view text) {
  if (error == nullptr) return;
  size_t length = std::min(text.size(), sizeof(error->text) - 1);
  // Not within a character: its further bytes are 10xxxxxx.
  while (length > 0 && length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  error->text[text.copy(error->text, length)] = '\0';
}

// Statuses of errors that the program has too are its exit codes.
static_assert(THIMBLE_USAGE == static_cast<int>(thimble::ExitCode::kUsage));
static_assert(THIMBLE_BAD_INPUT == static_cast<int>(thimble::ExitCode::kBadInput));
static_assert(THIMBLE_IO == static_cast<int>(thimble::ExitCode::kIo));

// What is being thrown, as a status and a text. For use within a handler alone.
[[gnu::noinline]] thimble_status status_of_exception(thimble_error* error) noexcept {
  const auto fail = [&](thimble_status status, const char* what) {
    put_text(error, what);
    return status;
  };
  try {
    throw;
  } catch (const thimble::MissingCodecError& problem) {
    return fail(THIMBLE_UNSUPPORTED, problem.what());
  } catch (const thimble::Error& problem) {
    return fail(static_cast<thimble_status>(problem.code()), problem.what());
  } catch (const std::bad_alloc&) {
    return fail(THIMBLE_NO_MEMORY, "not enough memory");
  } catch (...) {
    return fail(THIMBLE_INTERNAL, "a fault of the decoder");
  }
}

// Runs `body`; what it throws becomes a status.
template <typename Body>
thimble_status guarded(thimble_error* error, const Body& body) noexcept {
  try {
    put_text(error, {});
    body();
    return THIMBLE_OK;
  } catch (...) {
    return status_of_exception(error);
  }
}

void require(bool holds, std::string_view what) {
  if (!holds) throw UsageError(std::string(what));
}

void require_tensor(const thimble_artifact* artifact, size_t index) {
  require(artifact != nullptr, "the artifact is NULL");
  const size_t count = artifact->reader.header().tensors.size();
  if (index >= count) throw UsageError(fill_text("there is no tensor {}: the artifact has {}", index, count));
}

const TensorEntry& require_levels(const thimble_artifact* artifact, size_t index) {
  require_tensor(artifact, index);
  const TensorEntry& entry = artifact->reader.tensor(index);
  if (!entry.coded())
    throw UsageError(fill_text("tensor '{}' has no levels: it is stored as {}", entry.name, dtype_name(entry.dtype)));
  return entry;
}

size_t size_of(thimble_type type) {
  switch (type) {
    case THIMBLE_F32:
    case THIMBLE_I32: return 4;
    case THIMBLE_F16:
    case THIMBLE_BF16:
    case THIMBLE_I16: return 2;
    case THIMBLE_I8: return 1;
  }
  throw UsageError(fill_text("type {} is unknown", static_cast<int>(type)));
}

void require_room(const TensorEntry& entry, thimble_type type, const void* to, size_t bytes) {
  const size_t size = size_of(type);
  if (entry.elements() > std::numeric_limits<size_t>::max() / size || bytes != entry.elements() * size)
    throw UsageError(fill_text("tensor '{}' has {} elements of {} B, room of {} B given", entry.name, entry.elements(),
                               size, bytes));
  require(bytes == 0 || to != nullptr, "what to write to is NULL");
  require(reinterpret_cast<uintptr_t>(to) % size == 0, "what to write to is not aligned for its type");
}

// Levels into integers, which must hold them.
template <typename Integer>
class IntegerSink : public thimble::LevelSink {
 public:
  IntegerSink(const TensorEntry& entry, void* to) : entry_(entry), to_(static_cast<Integer*>(to)) {}

  void take(uint64_t r, uint64_t k, std::span<const int32_t> levels) override {
    Integer* out = to_ + static_cast<size_t>(r * entry_.columns() + k);
    bool fits = true;
    for (int32_t level : levels) {
      *out = static_cast<Integer>(level);
      fits &= *out++ == level;
    }
    if (!fits) throw UsageError(fill_text("tensor '{}' has levels beyond {} bits", entry_.name, 8 * sizeof(Integer)));
  }

 private:
  const TensorEntry& entry_;
  Integer* to_;
};

template <typename Integer>
void decode_integers(const TensorReader& reader, size_t index, void* to) {
  IntegerSink<Integer> sink(reader.tensor(index), to);
  reader.decode_levels(index, sink);
}

void open(const ArtifactBytes& file, const char* name, thimble_artifact** artifact) {
  require(artifact != nullptr, "where the artifact goes is NULL");
  *artifact = nullptr;
  *artifact = new thimble_artifact(file, name);
}

Bytes bytes_at(const void* first, size_t count) { return {static_cast<const std::byte*>(first), count}; }

void check_next(thimble_artifact& artifact, Bytes piece) {
  const uint64_t file_bytes = artifact.reader.file().size();
  if (piece.size() > file_bytes - artifact.checked_bytes)
    throw UsageError(
        fill_text("{} B behind byte {} of a file of {} B", piece.size(), artifact.checked_bytes, file_bytes));
  if (!artifact.hasher) artifact.hasher.emplace();
  // All bytes but those of the checksum itself.
  const auto add = [&](uint64_t begin, uint64_t end) {
    const uint64_t first = std::max(begin, artifact.checked_bytes);
    const uint64_t last = std::min<uint64_t>(end, artifact.checked_bytes + piece.size());
    if (first < last)
      artifact.hasher->add(
          piece.subspan(static_cast<size_t>(first - artifact.checked_bytes), static_cast<size_t>(last - first)));
  };
  add(0, thimble::kFileChecksumOffset);
  add(thimble::kPrefixBytes, file_bytes);
  artifact.checked_bytes += piece.size();
}

void check_end(thimble_artifact& artifact) {
  const uint64_t checked = std::exchange(artifact.checked_bytes, 0);
  const uint64_t found = artifact.hasher ? artifact.hasher->digest() : 0;
  artifact.hasher.reset();
  if (checked != artifact.reader.file().size())
    throw UsageError(fill_text("{} B of {} B were checked", checked, artifact.reader.file().size()));
  thimble::check_file_checksum(found, artifact.reader.file_checksum(), artifact.reader.path());
}

}  // namespace

thimble_status thimble_front_bytes(const void* first, size_t bytes, const char* name, uint64_t* front_bytes,
                                   thimble_error* error) {
  return guarded(error, [&] {
    require(first != nullptr && front_bytes != nullptr, "the bytes, or where their number goes, are NULL");
    *front_bytes = thimble::front_bytes(bytes_at(first, bytes), name_or_default(name));
  });
}

thimble_status thimble_open(const thimble_reader* reader, uint64_t file_bytes, const char* name,
                            thimble_artifact** artifact, thimble_error* error) {
  return guarded(error, [&] {
    require(reader != nullptr && reader->read != nullptr, "the reader is NULL");
    open(ArtifactBytes(*reader, file_bytes), name, artifact);
  });
}

thimble_status thimble_open_memory(const void* file, size_t bytes, const char* name, thimble_artifact** artifact,
                                   thimble_error* error) {
  return guarded(error, [&] {
    require(file != nullptr || bytes == 0, "the file is NULL");
    open(ArtifactBytes(bytes_at(file, bytes)), name, artifact);
  });
}

void thimble_close(thimble_artifact* artifact) { delete artifact; }

size_t thimble_tensor_count(const thimble_artifact* artifact) {
  return artifact != nullptr ? artifact->reader.header().tensors.size() : 0;
}

thimble_status thimble_tensor_at(const thimble_artifact* artifact, size_t index, thimble_tensor* tensor,
                                 thimble_error* error) {
  return guarded(error, [&] {
    require_tensor(artifact, index);
    require(tensor != nullptr, "where the tensor goes is NULL");
    const TensorEntry& entry = artifact->reader.tensor(index);
    const thimble::TensorPlace& place = artifact->reader.place(index);
    *tensor = {};
    tensor->name = entry.name.c_str();
    tensor->stored_as = artifact->stored_as[index].c_str();
    tensor->rank = static_cast<uint32_t>(entry.shape.size());
    tensor->has_levels = entry.coded();
    std::fill(std::begin(tensor->shape), std::end(tensor->shape), uint64_t{1});
    std::copy(entry.shape.begin(), entry.shape.end(), tensor->shape);
    tensor->elements = entry.elements();
    tensor->rows = entry.shape.empty() ? 1 : entry.rows();
    tensor->columns = entry.shape.empty() ? 1 : entry.columns();
    tensor->values_end = place.end;
    tensor->stored_bytes = place.others_bytes;
    if (!entry.coded()) return;
    tensor->blocks = artifact->reader.scale_blocks(index);
    tensor->block_columns = entry.encoding == thimble::Encoding::kNvfp4 ? thimble::kNvfp4Block : entry.columns();
    tensor->levels_end = place.codes_end;
    tensor->stored_bytes = place.codes_bytes;
  });
}

thimble_status thimble_find(const thimble_artifact* artifact, const char* name, size_t* index, thimble_error* error) {
  return guarded(error, [&] {
    require(artifact != nullptr && name != nullptr && index != nullptr, "the artifact, the name or the index is NULL");
    const std::vector<TensorEntry>& tensors = artifact->reader.header().tensors;
    const auto found = std::ranges::lower_bound(tensors, std::string_view(name), {}, &TensorEntry::name);
    if (found == tensors.end() || found->name != name)
      throw UsageError(fill_text("{} has no tensor '{}'", artifact->reader.path(), name));
    *index = static_cast<size_t>(found - tensors.begin());
  });
}

const char* thimble_config(const thimble_artifact* artifact) {
  return artifact != nullptr ? artifact->reader.header().config_json.c_str() : "{}";
}

const char* thimble_provenance(const thimble_artifact* artifact) {
  return artifact != nullptr ? artifact->reader.header().provenance_json.c_str() : "{}";
}

uint64_t thimble_decode_memory(const thimble_artifact* artifact) {
  return artifact != nullptr ? artifact->reader.decode_memory() : 0;
}

thimble_status thimble_decode(thimble_artifact* artifact, size_t index, thimble_type type, void* to, size_t bytes,
                              thimble_error* error) {
  return guarded(error, [&] {
    require_tensor(artifact, index);
    require(type == THIMBLE_F32 || type == THIMBLE_F16 || type == THIMBLE_BF16, "values are F32, F16 or BF16");
    require_room(artifact->reader.tensor(index), type, to, bytes);
    auto* out16 = static_cast<uint16_t*>(to);
    auto* out32 = static_cast<float*>(to);
    artifact->reader.decode_values(index, [&](uint64_t first, std::span<const float> values) {
      const auto at = static_cast<size_t>(first);
      if (type == THIMBLE_F32)
        std::ranges::copy(values, out32 + at);
      else
        std::ranges::transform(values, out16 + at,
                               type == THIMBLE_F16 ? thimble::fp16_from_float : thimble::bf16_from_float);
    });
  });
}

thimble_status thimble_largest_level(thimble_artifact* artifact, size_t index, uint32_t* largest,
                                     thimble_error* error) {
  return guarded(error, [&] {
    require_levels(artifact, index);
    require(largest != nullptr, "where the largest level goes is NULL");
    *largest = artifact->reader.largest_level(index);
  });
}

thimble_status thimble_decode_levels(thimble_artifact* artifact, size_t index, thimble_type type, void* to,
                                     size_t bytes, thimble_error* error) {
  return guarded(error, [&] {
    const TensorEntry& entry = require_levels(artifact, index);
    require_room(entry, type, to, bytes);
    switch (type) {
      case THIMBLE_I8: return decode_integers<int8_t>(artifact->reader, index, to);
      case THIMBLE_I16: return decode_integers<int16_t>(artifact->reader, index, to);
      case THIMBLE_I32: return decode_integers<int32_t>(artifact->reader, index, to);
      default: throw UsageError("levels are I8, I16 or I32");
    }
  });
}

thimble_status thimble_decode_scales(thimble_artifact* artifact, size_t index, float* row_scales, float* column_scales,
                                     thimble_error* error) {
  return guarded(error, [&] {
    const TensorEntry& entry = require_levels(artifact, index);
    const TensorReader& reader = artifact->reader;
    constexpr uint64_t kRowsAtOnce = 1024;  // so that little memory is taken besides
    if (row_scales != nullptr && reader.scale_blocks(index) > 0)
      for (uint64_t first = 0; first < entry.rows(); first += kRowsAtOnce)
        row_scales =
            std::ranges::copy(reader.row_scales(index, first, std::min(kRowsAtOnce, entry.rows() - first)), row_scales)
                .out;
    if (column_scales != nullptr) std::ranges::copy(reader.column_scales(index), column_scales);
  });
}

thimble_status thimble_check_next(thimble_artifact* artifact, const void* piece, size_t bytes, thimble_error* error) {
  return guarded(error, [&] {
    require(artifact != nullptr && (piece != nullptr || bytes == 0), "the artifact or its bytes are NULL");
    check_next(*artifact, bytes_at(piece, bytes));
  });
}

thimble_status thimble_check_end(thimble_artifact* artifact, thimble_error* error) {
  return guarded(error, [&] {
    require(artifact != nullptr, "the artifact is NULL");
    check_end(*artifact);
  });
}

thimble_status thimble_check_file(thimble_artifact* artifact, thimble_error* error) {
  return guarded(error, [&] {
    require(artifact != nullptr, "the artifact is NULL");
    constexpr uint64_t kPiece = 64 << 10;
    const ArtifactBytes& file = artifact->reader.file();
    artifact->hasher.reset();
    artifact->checked_bytes = 0;
    thimble::ByteVector room;
    for (uint64_t at = 0; at < file.size(); at += kPiece) {
      const auto count = static_cast<size_t>(std::min(kPiece, file.size() - at));
      check_next(*artifact, file.read(at, count, room, artifact->reader.path()));
    }
    check_end(*artifact);
  });
}
