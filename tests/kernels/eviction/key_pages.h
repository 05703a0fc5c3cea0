#pragma once

#include <numeric>
#include <random>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/kv_rows.h"
#include "tests/kernels/random_data.h"

namespace penstock {

// An arena with the keys and values of one sequence in random pages, and free pages behind them.
class KeyPages {
 public:
  KeyPages(const KvLayout& layout, int64_t tokens, int64_t free_blocks, uint64_t seed)
      : layout_(layout),
        held_(layout.BlocksFor(tokens)),
        memory_(static_cast<size_t>(held_ + free_blocks) * layout.BlockStride()) {
    std::vector<uint32_t> order(static_cast<size_t>(held_ + free_blocks));
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    blocks_.assign(order.begin(), order.begin() + held_);
    free_.assign(order.begin() + held_, order.end());
    RandomData data(seed);
    for (int32_t layer = 0; layer < layout.layers; ++layer) {
      for (int32_t head = 0; head < layout.kv_heads; ++head) {
        for (int64_t token = 0; token < tokens; ++token) {
          for (const KvPlane plane : {KvPlane::kKeys, KvPlane::kValues}) {
            cpu::StoreKvRow(kv(), At(blocks_, layer, head, plane, token),
                            data.Floats(layout.head_dim).data());
          }
        }
      }
    }
  }

  PagedKv kv() {
    return {.arena = memory_.as<std::byte>(),
            .blocks = static_cast<int64_t>(blocks_.size() + free_.size()),
            .layout = layout_};
  }
  const std::vector<uint32_t>& blocks() const { return blocks_; }
  const std::vector<uint32_t>& free_blocks() const { return free_; }
  KvRowsAt At(const std::vector<uint32_t>& table, int32_t layer, int32_t head, KvPlane plane,
              int64_t token) const {
    return {.block = table[static_cast<size_t>(token / layout_.block_tokens)],
            .layer = layer,
            .kv_head = head,
            .plane = plane,
            .slot = token % layout_.block_tokens};
  }

 private:
  const KvLayout layout_;
  const int64_t held_;
  Buffer memory_;
  std::vector<uint32_t> blocks_;
  std::vector<uint32_t> free_;
};

}  // namespace penstock
