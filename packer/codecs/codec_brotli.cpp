// codec_brotli.cpp: Brotli (RFC 7932) at quality 11, window 2^22.
// On codes of trained weights its mode, block size and distance parameters change the size by less than 0.01%.
#include <brotli/decode.h>
#include <brotli/encode.h>
#include <fmt/format.h>

#include <memory>
#include <new>

#include "packer/codecs/codec.h"
#include "packer/layout/bounded_output.h"

namespace thimble {
namespace {

class BrotliCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kBrotli; }
  std::string_view name() const override { return "brotli"; }

  std::string version() const override {
    uint32_t number = BrotliEncoderVersion();
    return fmt::format("{}.{}.{}", number >> 24, (number >> 12) & 0xfff, number & 0xfff);
  }

  bool takes(const ContentShape& /*shape*/, LayoutId /*layout*/) const override { return true; }

  ByteVector compress(Bytes raw, const ContentShape& /*shape*/) const override {
    ByteVector stored(BrotliEncoderMaxCompressedSize(raw.size()));
    size_t stored_bytes = stored.size();
    if (!BrotliEncoderCompress(BROTLI_MAX_QUALITY, kWindowLog, BROTLI_MODE_GENERIC, raw.size(),
                               reinterpret_cast<const uint8_t*>(raw.data()), &stored_bytes,
                               reinterpret_cast<uint8_t*>(stored.data())))
      throw std::bad_alloc();  // LCOV_EXCL_LINE: memory is exhausted
    stored.resize(stored_bytes);
    return stored;
  }

  ByteVector decompress(Bytes stored, uint64_t raw_bytes, const ContentShape& /*shape*/,
                        const std::string& where) const override {
    std::unique_ptr<BrotliDecoderState, decltype(&BrotliDecoderDestroyInstance)> decoder(
        BrotliDecoderCreateInstance(nullptr, nullptr, nullptr), BrotliDecoderDestroyInstance);
    if (!decoder) throw std::bad_alloc();
    BoundedOutput output(raw_bytes, where);
    size_t input_left = stored.size();
    const auto* input = reinterpret_cast<const uint8_t*>(stored.data());
    BrotliDecoderResult result = BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT;
    while (result == BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT) {
      std::span<std::byte> room = output.room();
      size_t room_left = room.size();
      auto* next = reinterpret_cast<uint8_t*>(room.data());
      result = BrotliDecoderDecompressStream(decoder.get(), &input_left, &input, &room_left, &next, nullptr);
      output.wrote(room.size() - room_left);
    }
    if (result == BROTLI_DECODER_RESULT_ERROR)
      throw FormatError(where, std::string("damaged Brotli stream: ") +
                                   BrotliDecoderErrorString(BrotliDecoderGetErrorCode(decoder.get())));
    if (result == BROTLI_DECODER_RESULT_NEEDS_MORE_INPUT) throw FormatError(where, "truncated Brotli stream");
    if (input_left != 0) throw FormatError(where, std::to_string(input_left) + " B after the end of the Brotli stream");
    return output.finish();
  }

 private:
  static constexpr int kWindowLog = 22;
};

}  // namespace

const Codec& brotli_codec() {
  static const BrotliCodec kCodec;
  return kCodec;
}

}  // namespace thimble
