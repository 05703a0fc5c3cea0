#include "kvstore/names/block_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>

#include "base/check.h"

namespace penstock {
namespace {

// The version of the id format. It changes whenever the meaning of a BlockId changes.
constexpr std::string_view kRootLabel = "penstock.block.root.v1";

void AppendInteger(uint64_t value, int bytes, std::string* target) {
  for (int i = 0; i < bytes; ++i) target->push_back(static_cast<char>(value >> (8 * i)));
}

void AppendText(std::string_view text, std::string* target) {
  // The length prefix keeps two different lists of fields from having equal bytes.
  AppendInteger(text.size(), 8, target);
  target->append(text);
}

BlockId Truncated(const uint8_t* digest) {
  BlockId id;
  std::copy_n(digest, id.bytes.size(), id.bytes.begin());
  return id;
}

}  // namespace

std::string BlockId::Hex() const {
  std::string hex;
  for (const uint8_t byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

BlockId RootBlockId(const BlockNamespace& space) {
  std::string fields;
  AppendText(kRootLabel, &fields);
  AppendInteger(space.model_fingerprint, 8, &fields);
  AppendText(space.kv_format, &fields);
  AppendText(space.provenance, &fields);
  uint8_t digest[SHA256_DIGEST_LENGTH];
  const uint8_t* made =
      HMAC(EVP_sha256(), space.tenant_salt.data(), static_cast<int>(space.tenant_salt.size()),
           reinterpret_cast<const uint8_t*>(fields.data()), fields.size(), digest, nullptr);
  PENSTOCK_CHECK(made != nullptr);
  return Truncated(digest);
}

BlockId ChildBlockId(const BlockId& parent, std::span<const uint32_t> tokens) {
  std::string bytes(parent.bytes.begin(), parent.bytes.end());
  bytes.reserve(bytes.size() + tokens.size_bytes());
  for (const uint32_t token : tokens) AppendInteger(token, 4, &bytes);
  uint8_t digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digest);
  return Truncated(digest);
}

std::vector<BlockId> HashBlocks(const BlockId& root, std::span<const uint32_t> tokens,
                                int32_t block_tokens) {
  PENSTOCK_CHECK_GE(block_tokens, 1);
  std::vector<BlockId> ids;
  ids.reserve(tokens.size() / block_tokens);
  const BlockId* parent = &root;
  for (; tokens.size() >= static_cast<size_t>(block_tokens);
       tokens = tokens.subspan(block_tokens)) {
    ids.push_back(ChildBlockId(*parent, tokens.first(block_tokens)));
    parent = &ids.back();
  }
  return ids;
}

}  // namespace penstock
