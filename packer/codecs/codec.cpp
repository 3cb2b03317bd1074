// codec.cpp: the compression libraries with their settings, the weight coder, and the table of them.
// On codes of trained weights Brotli's mode, block size and distance parameters change the size by less than 0.01%.
#include "packer/codecs/codec.h"

#include <brotli/decode.h>
#include <brotli/encode.h>
#include <fmt/format.h>
#include <lzma.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <memory>
#include <new>

#include "packer/rans/weight_coder.h"

namespace thimble {
namespace {

const uint8_t* source(Bytes bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }
uint8_t* target(std::span<std::byte> bytes) { return reinterpret_cast<uint8_t*>(bytes.data()); }

enum class Stream { kGoesOn, kEnded, kTruncated };

// What a decompressor makes of `stored`, a `kind` ("zstd frame") of exactly raw_bytes, or a FormatError. That size
// comes from an untrusted file: memory grows with what is written, never by the declared size up front. step(input,
// room) moves the beginning of both past what it has read and written; there is always room.
template <typename Step>
ByteVector decompress_stream(Bytes stored, uint64_t raw_bytes, std::string_view kind, const std::string& where,
                             const Step& step) {
  constexpr uint64_t kFirstBytes = 1 << 16;
  ByteVector raw;
  uint64_t written = 0;
  Stream state = Stream::kGoesOn;
  while (state == Stream::kGoesOn) {
    if (written == raw.size())  // one byte past the declared size is offered so that an excess shows
      raw.resize(std::min(raw_bytes + 1, std::max(2 * written, kFirstBytes)));
    std::span<std::byte> room = std::span(raw).subspan(written);
    state = step(stored, room);
    written = raw.size() - room.size();
    if (written > raw_bytes)
      throw FormatError(where, fmt::format("decompresses to more than the declared {} B", raw_bytes));
  }
  if (state == Stream::kTruncated) throw FormatError(where, fmt::format("truncated {}", kind));
  if (!stored.empty()) throw FormatError(where, fmt::format("{} B after the end of the {}", stored.size(), kind));
  if (written != raw_bytes)
    throw FormatError(where, fmt::format("decompresses to {} B, {} B declared", written, raw_bytes));
  raw.resize(written);
  return raw;
}

ByteVector copy_of(Bytes raw, const ContentShape&) { return {raw.begin(), raw.end()}; }

ByteVector copy_back(Bytes stored, uint64_t raw_bytes, const ContentShape&, const std::string& where) {
  if (stored.size() != raw_bytes)
    throw FormatError(where, fmt::format("{} B stored without compression, {} B declared", stored.size(), raw_bytes));
  return {stored.begin(), stored.end()};
}

// Brotli (RFC 7932) at quality 11, window 2^22.
std::string brotli_version() {
  const uint32_t number = BrotliEncoderVersion();
  return fmt::format("{}.{}.{}", number >> 24, (number >> 12) & 0xfff, number & 0xfff);
}

ByteVector compress_brotli(Bytes raw, const ContentShape&) {
  ByteVector stored(BrotliEncoderMaxCompressedSize(raw.size()));
  size_t stored_bytes = stored.size();
  if (!BrotliEncoderCompress(BROTLI_MAX_QUALITY, kCodecWindowLog, BROTLI_MODE_GENERIC, raw.size(), source(raw),
                             &stored_bytes, target(stored)))
    throw std::bad_alloc();  // LCOV_EXCL_LINE: memory is exhausted
  stored.resize(stored_bytes);
  return stored;
}

ByteVector decompress_brotli(Bytes stored, uint64_t raw_bytes, const ContentShape&, const std::string& where) {
  const std::unique_ptr<BrotliDecoderState, decltype(&BrotliDecoderDestroyInstance)> decoder(
      BrotliDecoderCreateInstance(nullptr, nullptr, nullptr), BrotliDecoderDestroyInstance);
  if (!decoder) throw std::bad_alloc();
  return decompress_stream(stored, raw_bytes, "Brotli stream", where, [&](Bytes& input, std::span<std::byte>& room) {
    size_t input_left = input.size(), room_left = room.size();
    const uint8_t* from = source(input);
    uint8_t* to = target(room);
    const BrotliDecoderResult result =
        BrotliDecoderDecompressStream(decoder.get(), &input_left, &from, &room_left, &to, nullptr);
    input = input.last(input_left);
    room = room.last(room_left);
    if (result == BROTLI_DECODER_RESULT_ERROR)
      throw FormatError(where, fmt::format("damaged Brotli stream: {}",
                                           BrotliDecoderErrorString(BrotliDecoderGetErrorCode(decoder.get()))));
    if (result == BROTLI_DECODER_RESULT_NEEDS_MORE_INPUT) return Stream::kTruncated;
    return result == BROTLI_DECODER_RESULT_SUCCESS ? Stream::kEnded : Stream::kGoesOn;
  });
}

// One Zstandard frame (RFC 8878) at level 22, without its own checksum.
std::string zstd_version() { return ZSTD_versionString(); }

ByteVector compress_zstd(Bytes raw, const ContentShape&) {
  constexpr int kLevel = 22;
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> encoder(ZSTD_createCCtx(), ZSTD_freeCCtx);
  if (!encoder) throw std::bad_alloc();
  ZSTD_CCtx_setParameter(encoder.get(), ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(encoder.get(), ZSTD_c_windowLog, kCodecWindowLog);  // stepped codes may be longer
  ByteVector stored(ZSTD_compressBound(raw.size()));
  const size_t result = ZSTD_compress2(encoder.get(), stored.data(), stored.size(), raw.data(), raw.size());
  if (ZSTD_isError(result)) throw std::bad_alloc();  // the output fits by construction
  stored.resize(result);
  return stored;
}

ByteVector decompress_zstd(Bytes stored, uint64_t raw_bytes, const ContentShape&, const std::string& where) {
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> decoder(ZSTD_createDCtx(), ZSTD_freeDCtx);
  if (!decoder) throw std::bad_alloc();
  ZSTD_DCtx_setParameter(decoder.get(), ZSTD_d_windowLogMax, kCodecWindowLog);
  return decompress_stream(stored, raw_bytes, "zstd frame", where, [&](Bytes& input, std::span<std::byte>& room) {
    ZSTD_inBuffer from{input.data(), input.size(), 0};
    ZSTD_outBuffer to{room.data(), room.size(), 0};
    const size_t result = ZSTD_decompressStream(decoder.get(), &to, &from);
    if (ZSTD_isError(result))
      throw FormatError(where, fmt::format("damaged zstd frame: {}", ZSTD_getErrorName(result)));
    input = input.subspan(from.pos);
    room = room.subspan(to.pos);
    if (result == 0) return Stream::kEnded;
    return input.empty() && !room.empty() ? Stream::kTruncated : Stream::kGoesOn;
  });
}

// A bare LZMA2 stream of liblzma, preset 9 extreme, without the .xz container and its checksums. The dictionary's size
// follows from the raw size, so nothing but the stream is stored. Literals get neither context (lc = 0) nor position
// (pb = 0): on codes of trained weights that is 1.2% smaller than the preset's lc = 3, pb = 2.
std::string xz_version() { return lzma_version_string(); }

lzma_options_lzma lzma_options_for(uint64_t raw_bytes) {
  lzma_options_lzma options;
  if (lzma_lzma_preset(&options, 9 | LZMA_PRESET_EXTREME)) throw std::bad_alloc();
  const uint64_t bounded = std::clamp<uint64_t>(raw_bytes, LZMA_DICT_SIZE_MIN, uint64_t{1} << kCodecWindowLog);
  options.dict_size = static_cast<uint32_t>(std::bit_ceil(bounded));
  options.lc = 0;
  options.pb = 0;
  return options;
}

ByteVector compress_xz(Bytes raw, const ContentShape&) {
  lzma_options_lzma options = lzma_options_for(raw.size());
  const lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, nullptr}};
  // LZMA2 stores incompressible data in chunks of 64 KiB with 3 bytes each.
  ByteVector stored(raw.size() + raw.size() / 1024 + 64);
  size_t stored_bytes = 0;
  if (lzma_raw_buffer_encode(filters, nullptr, source(raw), raw.size(), target(stored), &stored_bytes, stored.size()) !=
      LZMA_OK)
    throw std::bad_alloc();
  stored.resize(stored_bytes);
  return stored;
}

ByteVector decompress_xz(Bytes stored, uint64_t raw_bytes, const ContentShape&, const std::string& where) {
  lzma_options_lzma options = lzma_options_for(raw_bytes);
  const lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, nullptr}};
  lzma_stream stream = LZMA_STREAM_INIT;
  const std::unique_ptr<lzma_stream, decltype(&lzma_end)> owner(&stream, lzma_end);
  if (lzma_raw_decoder(&stream, filters) != LZMA_OK) throw std::bad_alloc();
  return decompress_stream(stored, raw_bytes, "LZMA2 stream", where, [&](Bytes& input, std::span<std::byte>& room) {
    stream.next_in = source(input);
    stream.avail_in = input.size();
    stream.next_out = target(room);
    stream.avail_out = room.size();
    const lzma_ret result = lzma_code(&stream, LZMA_FINISH);
    input = input.last(stream.avail_in);
    room = room.last(stream.avail_out);
    switch (result) {
      case LZMA_OK: return Stream::kGoesOn;
      case LZMA_STREAM_END: return Stream::kEnded;
      case LZMA_BUF_ERROR: return Stream::kTruncated;
      case LZMA_MEM_ERROR: throw std::bad_alloc();
      default: throw FormatError(where, "damaged LZMA2 stream");
    }
  });
}

// The weight coder (weight_coder.h, docs/reference/weight_coder.md). Unlike the others it needs the matrix's shape, and
// codes one by one: no other contents, no layout but the plain one.
std::string rans_version() { return "1.0"; }

ByteVector compress_rans(Bytes raw, const ContentShape& shape) {
  assert(raw.size() == shape.content_bytes());
  std::vector<int32_t> codes(shape.elements());
  if (shape.has_stepped_codes())
    std::memcpy(codes.data(), raw.data(), raw.size());
  else
    std::ranges::transform(raw, codes.begin(), [](std::byte code) { return static_cast<int8_t>(code); });
  return encode_weights(codes, shape.rows, shape.columns, shape.trellis_bits);
}

ByteVector decompress_rans(Bytes stored, [[maybe_unused]] uint64_t raw_bytes, const ContentShape& shape,
                           const std::string& where) {
  assert(raw_bytes == shape.content_bytes());
  ByteVector raw;
  const bool stepped = shape.has_stepped_codes();
  const auto append = [&](std::span<const int32_t> codes) {
    if (stepped) return append_bytes(raw, std::as_bytes(codes));
    raw.resize(raw.size() + codes.size());
    std::ranges::transform(codes, raw.end() - std::ssize(codes),
                           [](int32_t code) { return static_cast<std::byte>(code); });
  };
  decode_weights(append, stored, shape.rows, shape.columns, where, shape.trellis_bits,
                 stepped ? kMaxCodeMagnitude : kMaxCode);
  return raw;
}

}  // namespace

std::span<const Codec> all_codecs() {
  static constexpr std::array kCodecs = {
      Codec{CodecId::kNone, "none", [] { return std::string("1"); }, copy_of, copy_back},
      Codec{CodecId::kBrotli, "brotli", brotli_version, compress_brotli, decompress_brotli},
      Codec{CodecId::kZstd, "zstd", zstd_version, compress_zstd, decompress_zstd},
      Codec{CodecId::kXz, "xz", xz_version, compress_xz, decompress_xz},
      Codec{CodecId::kRans, "rans", rans_version, compress_rans, decompress_rans}};
  return kCodecs;
}

}  // namespace thimble
