#include "kernels/wanted_pages.h"

#include <algorithm>
#include <vector>

#include "kernels/kv_pager.h"

namespace penstock {

void WantPages(const PagedKv& kv, int32_t layer, int32_t window,
               std::span<const AttentionSequence> sequences) {
  if (kv.pager == nullptr) return;
  for (const AttentionSequence& sequence : sequences) {
    if (sequence.head_blocks > 0) continue;
    const int64_t end = kv.layout.BlocksFor(sequence.position + sequence.rows);
    const int64_t seen = window == 0 ? 0 : std::max<int64_t>(0, sequence.position - window + 1);
    const int64_t first = seen / kv.layout.block_tokens;
    kv.pager->OnWanted(
        sequence.blocks.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)),
        layer);
  }
}

std::vector<uint32_t> SelectedBlocks(std::span<const AttentionSequence> sequences) {
  std::vector<uint32_t> blocks;
  for (const AttentionSequence& sequence : sequences) {
    if (sequence.head_blocks == 0) continue;
    blocks.insert(blocks.end(), sequence.blocks.begin(), sequence.blocks.end());
  }
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

}  // namespace penstock
