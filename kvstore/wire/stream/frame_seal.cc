#include "kvstore/wire/stream/frame_seal.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

using KdfPtr = std::unique_ptr<EVP_KDF, OpenSslFree<EVP_KDF_free>>;
using KdfContextPtr = std::unique_ptr<EVP_KDF_CTX, OpenSslFree<EVP_KDF_CTX_free>>;

// HKDF-Expand (RFC 5869, section 2.3).
void Expand(const std::string& secret, std::string_view label, std::span<unsigned char> out) {
  const KdfPtr kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const KdfContextPtr context(EVP_KDF_CTX_new(kdf.get()));
  int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
  char digest[] = "SHA256";
  std::string key = secret;
  std::string info(label);
  const std::array<OSSL_PARAM, 5> params = {
      OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  PENSTOCK_CHECK_EQ(EVP_KDF_derive(context.get(), out.data(), out.size(), params.data()), 1);
}

std::string LabelOf(StreamDirection direction, uint64_t generation) {
  return fmt::format("penstock wire 2 {} {}",
                     direction == StreamDirection::kFromCaller ? "from caller" : "to caller",
                     generation);
}

const unsigned char* Unsigned(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
unsigned char* Unsigned(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}  // namespace

FrameSeal::FrameSeal(std::string secret, StreamDirection direction, uint64_t first_frame)
    : secret_(std::move(secret)),
      direction_(direction),
      frame_(first_frame),
      cipher_(EVP_CIPHER_CTX_new()) {
  PENSTOCK_CHECK(!secret_.empty() && cipher_ != nullptr);
}

void FrameSeal::SetKey(uint64_t generation, Use use) {
  std::array<unsigned char, 16 + 12> material{};
  Expand(secret_, LabelOf(direction_, generation), material);
  std::copy_n(material.begin() + 16, fixed_nonce_.size(), fixed_nonce_.begin());
  PENSTOCK_CHECK_EQ(EVP_CipherInit_ex(cipher_.get(), EVP_aes_128_gcm(), nullptr, material.data(),
                                      nullptr, static_cast<int>(use)),
                    1);
  OPENSSL_cleanse(material.data(), material.size());
  keyed_ = true;
}

bool FrameSeal::Begin(std::span<const std::byte> header, Use use) {
  if (!keyed_ || frame_ % kFramesOfKey == 0) SetKey(frame_ / kFramesOfKey, use);
  std::array<unsigned char, 12> nonce = fixed_nonce_;
  const uint64_t number = frame_++;
  for (size_t i = 0; i < sizeof(number); ++i) {
    nonce[nonce.size() - 1 - i] ^= static_cast<unsigned char>(number >> (8 * i));
  }
  int done = 0;
  return EVP_CipherInit_ex(cipher_.get(), nullptr, nullptr, nullptr, nonce.data(),
                           static_cast<int>(use)) == 1 &&
         EVP_CipherUpdate(cipher_.get(), nullptr, &done, Unsigned(header.data()),
                          static_cast<int>(header.size())) == 1;
}

void FrameSeal::Seal(std::span<const std::byte> header, std::span<const std::byte> body,
                     std::byte* out, std::span<std::byte, kSealTagBytes> tag) {
  int done = 0;
  EVP_CIPHER_CTX* cipher = cipher_.get();
  const bool good =
      Begin(header, Use::kSeal) &&
      EVP_CipherUpdate(cipher, Unsigned(out), &done, Unsigned(body.data()),
                       static_cast<int>(body.size())) == 1 &&
      EVP_CipherFinal_ex(cipher, Unsigned(tag.data()), &done) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_GET_TAG, kSealTagBytes, tag.data()) == 1;
  PENSTOCK_CHECK(good, "(OpenSSL cannot seal a frame)");
}

absl::Status FrameSeal::Open(std::span<const std::byte> header, std::span<std::byte> body,
                             std::span<const std::byte, kSealTagBytes> tag) {
  int done = 0;
  std::array<unsigned char, kSealTagBytes> end{};  // GCM writes nothing here
  std::array<std::byte, kSealTagBytes> expected{};
  std::copy(tag.begin(), tag.end(), expected.begin());
  EVP_CIPHER_CTX* cipher = cipher_.get();
  const bool good =
      Begin(header, Use::kOpen) &&
      EVP_CipherUpdate(cipher, Unsigned(body.data()), &done, Unsigned(body.data()),
                       static_cast<int>(body.size())) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_AEAD_SET_TAG, kSealTagBytes, expected.data()) == 1 &&
      EVP_CipherFinal_ex(cipher, end.data(), &done) == 1;
  if (good) return absl::OkStatus();
  return DataLoss("the seal of a frame is broken");
}

std::array<std::byte, 32> StreamProof(const std::string& secret) {
  std::array<std::byte, 32> proof{};
  if (!secret.empty()) {
    Expand(secret, "penstock wire 2 join",
           {reinterpret_cast<unsigned char*>(proof.data()), proof.size()});
  }
  return proof;
}

}  // namespace penstock
