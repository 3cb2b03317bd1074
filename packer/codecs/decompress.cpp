// decompress.cpp: the decompressors of the libraries that the build has, and the weight coder.
#include "packer/codecs/decompress.h"

#ifdef THIMBLE_BROTLI
#include <brotli/decode.h>
#endif
#ifdef THIMBLE_ZSTD
#include <zstd.h>
#endif

#include <algorithm>
#include <cassert>
#include <memory>
#include <new>

#include "packer/codecs/library_bytes.h"
#ifdef THIMBLE_LZMA
#include "packer/codecs/lzma_settings.h"
#endif
#include "packer/rans/weight_coder.h"
#include "runtime/base/format_error.h"

namespace thimble {
namespace {

#if defined(THIMBLE_BROTLI) || defined(THIMBLE_ZSTD) || defined(THIMBLE_LZMA)
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
    if (written > raw_bytes) throw_format_error(where, "decompresses to more than the declared {} B", raw_bytes);
  }
  if (state == Stream::kTruncated) throw_format_error(where, "truncated {}", kind);
  if (!stored.empty()) throw_format_error(where, "{} B after the end of the {}", stored.size(), kind);
  if (written != raw_bytes) throw_format_error(where, "decompresses to {} B, {} B declared", written, raw_bytes);
  raw.resize(written);
  return raw;
}
#endif

ByteVector copy_back(Bytes stored, uint64_t raw_bytes, const ContentShape&, const std::string& where) {
  if (stored.size() != raw_bytes)
    throw_format_error(where, "{} B stored without compression, {} B declared", stored.size(), raw_bytes);
  return {stored.begin(), stored.end()};
}

#ifdef THIMBLE_BROTLI
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
      throw_format_error(where, "damaged Brotli stream: {}",
                         BrotliDecoderErrorString(BrotliDecoderGetErrorCode(decoder.get())));
    if (result == BROTLI_DECODER_RESULT_NEEDS_MORE_INPUT) return Stream::kTruncated;
    return result == BROTLI_DECODER_RESULT_SUCCESS ? Stream::kEnded : Stream::kGoesOn;
  });
}
#endif

#ifdef THIMBLE_ZSTD
ByteVector decompress_zstd(Bytes stored, uint64_t raw_bytes, const ContentShape&, const std::string& where) {
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> decoder(ZSTD_createDCtx(), ZSTD_freeDCtx);
  if (!decoder) throw std::bad_alloc();
  ZSTD_DCtx_setParameter(decoder.get(), ZSTD_d_windowLogMax, kCodecWindowLog);
  return decompress_stream(stored, raw_bytes, "zstd frame", where, [&](Bytes& input, std::span<std::byte>& room) {
    ZSTD_inBuffer from{input.data(), input.size(), 0};
    ZSTD_outBuffer to{room.data(), room.size(), 0};
    const size_t result = ZSTD_decompressStream(decoder.get(), &to, &from);
    if (ZSTD_isError(result)) throw_format_error(where, "damaged zstd frame: {}", ZSTD_getErrorName(result));
    input = input.subspan(from.pos);
    room = room.subspan(to.pos);
    if (result == 0) return Stream::kEnded;
    return input.empty() && !room.empty() ? Stream::kTruncated : Stream::kGoesOn;
  });
}
#endif

#ifdef THIMBLE_LZMA
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
      default: throw_format_error(where, "damaged LZMA2 stream");
    }
  });
}
#endif

ByteVector decompress_rans(Bytes stored, [[maybe_unused]] uint64_t raw_bytes, const ContentShape& shape,
                           const std::string& where) {
  assert(raw_bytes == shape.content_bytes());
  ByteVector raw;
  const bool stepped = shape.has_stepped_codes();
  const auto take = [&](const WeightBlock& block, std::span<const int32_t> codes) {
    raw.resize(shape.content_bytes());  // once the stream's lengths have added up
    for (uint64_t r = 0; r < block.rows; ++r, codes = codes.subspan(block.width)) {
      std::byte* out = &raw[(block.begin + r * block.stride) * shape.element_bytes];
      for (int32_t code : codes.first(block.width)) {
        if (stepped)
          store_little_endian(out, code);
        else
          *out = static_cast<std::byte>(code);
        out += shape.element_bytes;
      }
    }
  };
  decode_weights(take, stored, shape.rows, shape.columns, where, shape.trellis_bits,
                 stepped ? kMaxCodeMagnitude : kMaxCode);
  return raw;
}

}  // namespace

ByteVector decompress(CodecId codec, Bytes stored, uint64_t raw_bytes, const ContentShape& shape,
                      const std::string& where) {
  switch (codec) {
    case CodecId::kNone: return copy_back(stored, raw_bytes, shape, where);
    case CodecId::kRans: return decompress_rans(stored, raw_bytes, shape, where);
#ifdef THIMBLE_BROTLI
    case CodecId::kBrotli: return decompress_brotli(stored, raw_bytes, shape, where);
#endif
#ifdef THIMBLE_ZSTD
    case CodecId::kZstd: return decompress_zstd(stored, raw_bytes, shape, where);
#endif
#ifdef THIMBLE_LZMA
    case CodecId::kXz: return decompress_xz(stored, raw_bytes, shape, where);
#endif
    default: break;
  }
  throw MissingCodecError(where, fill_text("stored with {}, which this build has no library for; files of `thimble "
                                           "quantize --portable` need none",
                                           kCodecNames.at(static_cast<size_t>(codec))));
}

}  // namespace thimble
