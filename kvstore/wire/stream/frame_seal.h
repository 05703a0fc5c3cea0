#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "base/tls/openssl_ptr.h"

namespace penstock {

inline constexpr size_t kSealTagBytes = 16;

// The two directions of a link have keys of their own.
enum class StreamDirection { kFromCaller, kToCaller };

// Seals or opens the frames of one direction of a link, in their order, with AES-128-GCM (NIST SP
// 800-38D). Keys come from the link's secret by HKDF-Expand with SHA-256 (RFC 5869). The nonce is a
// fixed part XOR the number of the frame, as in TLS 1.3 (RFC 8446, section 5.3), so that a frame
// that is repeated, left out, moved or taken from another link does not open. After
// kFramesOfKey frames, at most 256 GiB, a new key follows, below the limit of RFC 8446,
// section 5.5.
class FrameSeal {
 public:
  static constexpr uint64_t kFramesOfKey = uint64_t{1} << 20;

  // `first_frame` is above 0 in tests only.
  FrameSeal(std::string secret, StreamDirection direction, uint64_t first_frame = 0);

  // Encrypts `body` to `out`, which may be the same bytes, and writes the tag of header and body.
  void Seal(std::span<const std::byte> header, std::span<const std::byte> body, std::byte* out,
            std::span<std::byte, kSealTagBytes> tag);
  // Decrypts `body` in place. DATA_LOSS when header, body or tag are not those that were sealed:
  // `body` is then worthless, and the link must be cut.
  absl::Status Open(std::span<const std::byte> header, std::span<std::byte> body,
                    std::span<const std::byte, kSealTagBytes> tag);

 private:
  enum class Use { kOpen = 0, kSeal = 1 };  // as EVP_CipherInit_ex takes it
  void SetKey(uint64_t generation, Use use);
  // Prepares the cipher for the next frame.
  bool Begin(std::span<const std::byte> header, Use use);

  const std::string secret_;
  const StreamDirection direction_;
  uint64_t frame_;
  std::array<unsigned char, 12> fixed_nonce_{};
  std::unique_ptr<EVP_CIPHER_CTX, OpenSslFree<EVP_CIPHER_CTX_free>> cipher_;
  bool keyed_ = false;
};

// Proof that the end that opens a link's connection knows the link's secret. Zeros for an
// empty secret.
std::array<std::byte, 32> StreamProof(const std::string& secret);

}  // namespace penstock
