#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock {

// Names the content of one full block and everything before it: SHA-256 truncated to 128 bits over
// (parent id, tokens). Equal ids mean equal KV, whoever computed it.
struct BlockId {
  std::array<uint8_t, 16> bytes{};

  auto operator<=>(const BlockId&) const = default;
  std::string Hex() const;

  template <class H>
  friend H AbslHashValue(H state, const BlockId& id) {
    return H::combine(std::move(state), id.bytes);
  }
};

// What two sequences must have in common before any of their blocks can be one.
struct BlockNamespace {
  uint64_t model_fingerprint = 0;
  std::string kv_format;    // resident format, e.g. "bf16"
  std::string tenant_salt;  // secret of the tenant; empty: shared by all who have none
  std::string provenance;   // empty: exact. A lossy or evicted sequence says what was done to it.
};

// The parent of a sequence's first block: HMAC-SHA-256 keyed by the tenant's salt over the rest, so
// that nobody without the salt can name a tenant's blocks.
BlockId RootBlockId(const BlockNamespace& space);

// `tokens` are those of the one block.
BlockId ChildBlockId(const BlockId& parent, std::span<const uint32_t> tokens);

// The ids of the full blocks of `tokens`, in order; a partial tail has none.
std::vector<BlockId> HashBlocks(const BlockId& root, std::span<const uint32_t> tokens,
                                int32_t block_tokens);

}  // namespace penstock
