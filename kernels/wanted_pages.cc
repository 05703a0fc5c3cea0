#include "kernels/wanted_pages.h"

#include <algorithm>
#include <vector>

#include "kernels/kv_pager.h"

namespace penstock {

void WantPages(const PagedKv& kv, int32_t layer, int32_t window,
               std::span<const AttentionSequence> sequences, std::span<int64_t> reads) {
  if (kv.pager == nullptr) return;
  for (const AttentionSequence& sequence : sequences) {
    if (sequence.head_blocks > 0) continue;
    const int64_t end = kv.layout.BlocksFor(sequence.position + sequence.rows);
    const int64_t seen = window == 0 ? 0 : std::max<int64_t>(0, sequence.position - window + 1);
    const int64_t first = seen / kv.layout.block_tokens;
    const std::vector<uint32_t> missing = kv.pager->OnWanted(
        sequence.blocks.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)),
        layer);
    reads[static_cast<size_t>(sequence.first_row)] += std::ssize(missing);
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

void CountReads(std::vector<uint32_t> missing, std::span<const AttentionSequence> sequences,
                std::span<int64_t> reads) {
  for (const AttentionSequence& sequence : sequences) {
    if (missing.empty()) return;
    const std::vector<uint32_t> selected = SelectedBlocks({&sequence, 1});
    reads[static_cast<size_t>(sequence.first_row)] +=
        static_cast<int64_t>(std::erase_if(missing, [&](uint32_t block) {
          return std::binary_search(selected.begin(), selected.end(), block);
        }));
  }
}

}  // namespace penstock
