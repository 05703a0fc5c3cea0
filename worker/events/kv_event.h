#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvstore/names/block_hash.h"

namespace penstock {

// The medium that holds a block, by vLLM's names: "GPU" is the memory that the model reads, also on
// a CPU; "CPU" is the host-memory tier; "DISK" is the NVMe tier.
enum class KvMedium : uint8_t { kGpu, kCpu, kDisk };
std::string_view KvMediumName(KvMedium medium);

// The name of a block for indexes outside the cluster: the last 8 bytes of its id, big-endian, as
// vLLM shortens its own hashes.
uint64_t ShortHash(const BlockId& id);

// Blocks that follow each other have come to a medium.
struct KvBlocksStored {
  std::vector<uint64_t> hashes;
  // The block before the first; nullopt: the first begins a prompt, or `tokens` is empty.
  std::optional<uint64_t> parent;
  // Of all blocks, `block_tokens` each. Empty: not known, or their tenant's secret; the blocks may
  // then belong to different prompts.
  std::vector<uint32_t> tokens;
  KvMedium medium = KvMedium::kGpu;
};

// Blocks have left a medium.
struct KvBlocksRemoved {
  std::vector<uint64_t> hashes;
  KvMedium medium = KvMedium::kGpu;
};

// Whatever was said before is void. The blocks that are cached follow.
struct KvBlocksCleared {};

using KvEvent = std::variant<KvBlocksStored, KvBlocksRemoved, KvBlocksCleared>;

// How one event is written: as an array of values, as vLLM before 0.24 did, or as a map with names,
// as it does since (vllm-project/vllm#42892).
enum class KvEventForm : uint8_t { kArray, kMap };

// A batch of events in MessagePack, as vLLM's KVEventBatch (vllm/distributed/kv_events.py): the
// array [time, events, data-parallel rank]. `unix_s` is the time in seconds since 1970,
// `block_tokens` the number of tokens in a block. Pure.
std::string EncodeKvEvents(std::span<const KvEvent> events, double unix_s, int32_t block_tokens,
                           KvEventForm form);

}  // namespace penstock
