// codec.cpp: the compression libraries with their settings, the weight coder, and the table of them.
// On codes of trained weights Brotli's mode, block size and distance parameters change the size by less than 0.01%.
#include "packer/codecs/codec.h"

#include <brotli/encode.h>
#include <fmt/format.h>
#include <lzma.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <memory>
#include <new>

#include "packer/codecs/library_bytes.h"
#include "packer/codecs/lzma_settings.h"
#include "packer/rans/weight_coder.h"

namespace thimble {
namespace {

ByteVector copy_of(Bytes raw, const ContentShape&) { return {raw.begin(), raw.end()}; }

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

// A bare LZMA2 stream of liblzma, preset 9 extreme, without the .xz container and its checksums. The dictionary's size
// follows from the raw size, so nothing but the stream is stored. Literals get neither context (lc = 0) nor position
// (pb = 0): on codes of trained weights that is 1.2% smaller than the preset's lc = 3, pb = 2. Scales and steps, which
// every artifact of a search packs anew on one core, are looked through less: 0.15% larger in 0.6 of the time.
std::string xz_version() { return lzma_version_string(); }

ByteVector compress_xz(Bytes raw, const ContentShape& shape) {
  lzma_options_lzma options = lzma_options_for(raw.size());
  if (shape.kind == SectionKind::kScales && shape.element_bytes == sizeof(int16_t)) {
    options.mf = LZMA_MF_HC3;
    options.nice_len = 64;
    options.depth = 16;
  }
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

// The weight coder (weight_coder.h, docs/reference/weight_coder.md). Unlike the others it needs the matrix's shape, and
// codes one by one: no other contents, no layout but the plain one.
std::string rans_version() { return "1.0"; }

ByteVector compress_rans(Bytes raw, const ContentShape& shape) {
  assert(raw.size() == shape.content_bytes());
  const auto encode = [&](std::span<const int32_t> codes) {
    return encode_weights(codes, shape.rows, shape.columns, shape.trellis_bits);
  };
  if (shape.has_stepped_codes()) {  // these bytes are int32 codes, and of a large matrix too many for a copy
    assert(reinterpret_cast<uintptr_t>(raw.data()) % alignof(int32_t) == 0);
    return encode({reinterpret_cast<const int32_t*>(raw.data()), shape.elements()});
  }
  std::vector<int32_t> codes(shape.elements());
  std::ranges::transform(raw, codes.begin(), [](std::byte code) { return static_cast<int8_t>(code); });
  return encode(codes);
}

}  // namespace

std::span<const Codec> all_codecs() {
  static constexpr std::array kCodecs = {
      Codec{CodecId::kNone, [] { return std::string("1"); }, copy_of},
      Codec{CodecId::kBrotli, brotli_version, compress_brotli}, Codec{CodecId::kZstd, zstd_version, compress_zstd},
      Codec{CodecId::kXz, xz_version, compress_xz}, Codec{CodecId::kRans, rans_version, compress_rans}};
  static_assert(kCodecs.size() == kCodecNames.size());
  return kCodecs;
}

}  // namespace thimble
