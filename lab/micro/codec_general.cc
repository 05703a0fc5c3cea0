#include "lab/micro/codec_general.h"

#include <lz4.h>
#include <zstd.h>

#include <algorithm>

namespace penstock {

size_t GeneralBound(GeneralCodec codec, size_t bytes) {
  return codec == GeneralCodec::kZstd1
             ? ZSTD_compressBound(bytes)
             : static_cast<size_t>(LZ4_compressBound(static_cast<int>(bytes)));
}

size_t GeneralEncode(GeneralCodec codec, std::span<const std::byte> raw,
                     std::span<std::byte> encoded) {
  if (codec == GeneralCodec::kZstd1) {
    const size_t used = ZSTD_compress(encoded.data(), encoded.size(), raw.data(), raw.size(), 1);
    return ZSTD_isError(used) != 0 ? 0 : used;
  }
  const int used = LZ4_compress_default(
      reinterpret_cast<const char*>(raw.data()), reinterpret_cast<char*>(encoded.data()),
      static_cast<int>(raw.size()), static_cast<int>(encoded.size()));
  return static_cast<size_t>(std::max(used, 0));
}

size_t GeneralDecode(GeneralCodec codec, std::span<const std::byte> encoded,
                     std::span<std::byte> raw) {
  if (codec == GeneralCodec::kZstd1) {
    const size_t used = ZSTD_decompress(raw.data(), raw.size(), encoded.data(), encoded.size());
    return ZSTD_isError(used) != 0 ? 0 : used;
  }
  const int used = LZ4_decompress_safe(
      reinterpret_cast<const char*>(encoded.data()), reinterpret_cast<char*>(raw.data()),
      static_cast<int>(encoded.size()), static_cast<int>(raw.size()));
  return static_cast<size_t>(std::max(used, 0));
}

}  // namespace penstock
