#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock {

// This room holds the names that routers, workers and stores share: ids of blocks, keys of handoffs
// and KV policies. It knows nothing of memory, wires, codecs' code or models, so every program can
// include it.

// The id of one full block: SHA-256, truncated to 128 bits, over (parent id, the block's tokens).
// It therefore names the block's content and everything before it. Equal ids mean equal KV, on
// every worker. A plain value; any thread.
struct BlockId {
  std::array<uint8_t, 16> bytes{};

  auto operator<=>(const BlockId&) const = default;
  std::string Hex() const;

  template <class H>
  friend H AbslHashValue(H state, const BlockId& id) {
    return H::combine(std::move(state), id.bytes);
  }
};

// Everything besides tokens that must be equal before two sequences can share a block.
struct BlockNamespace {
  uint64_t model_fingerprint = 0;
  std::string kv_format;    // format of the resident pages, e.g. "bf16"
  std::string tenant_salt;  // the tenant's secret; empty: shared by all tenants without a salt
  std::string provenance;   // empty: exact KV; else the name of the lossy policy that produced it
};

// The parent of a sequence's first block: HMAC-SHA-256 over the other fields, keyed by the tenant's
// salt. A client without the salt therefore cannot compute a tenant's block ids.
BlockId RootBlockId(const BlockNamespace& space);

// The id of the block that follows `parent`; `tokens` are the tokens of that one block.
BlockId ChildBlockId(const BlockId& parent, std::span<const uint32_t> tokens);

// The ids of the full blocks of `tokens`, in order; a partial last block has no id.
std::vector<BlockId> HashBlocks(const BlockId& root, std::span<const uint32_t> tokens,
                                int32_t block_tokens);

}  // namespace penstock
