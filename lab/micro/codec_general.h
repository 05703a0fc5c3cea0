#pragma once

#include <cstddef>
#include <span>

namespace penstock {

// The general-purpose compressors that KV codecs are compared with.
enum class GeneralCodec { kZstd1, kLz4 };

size_t GeneralBound(GeneralCodec codec, size_t bytes);
// Both return the bytes written, 0 when they failed.
size_t GeneralEncode(GeneralCodec codec, std::span<const std::byte> raw,
                     std::span<std::byte> encoded);
size_t GeneralDecode(GeneralCodec codec, std::span<const std::byte> encoded,
                     std::span<std::byte> raw);

}  // namespace penstock
