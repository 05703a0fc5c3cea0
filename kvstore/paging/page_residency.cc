#include "kvstore/paging/page_residency.h"

#include <algorithm>

#include "base/check.h"

namespace penstock {

PageResidency::PageResidency(const KvLayout& layout, int64_t blocks)
    : layout_(layout),
      blocks_(blocks),
      uses_(std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(blocks) *
                                                     static_cast<size_t>(layout.layers))),
      in_memory_(std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(blocks))) {
  PENSTOCK_CHECK_EQ(layout.BlockStride() % kSystemPageBytes, 0u);
}

bool PageResidency::Use(uint32_t block, int32_t layer) {
  std::atomic<uint8_t>& uses = UsesOf(block, layer);
  uint8_t seen = uses.load(std::memory_order_relaxed);
  if (seen == kMax) return false;
  // A pass at the same moment may take the count to kOut: then it is this unit's first use.
  uint8_t next = 0;
  do {
    next = IsOut(seen) ? kUse : static_cast<uint8_t>(std::min(seen + kUse, int{kMax}));
  } while (!uses.compare_exchange_weak(seen, next, std::memory_order_relaxed));
  if (!IsOut(seen)) return false;
  AddBytes(block, static_cast<int64_t>(PagesOf(block, layer).size()));
  return true;
}

bool PageResidency::Expect(uint32_t block, int32_t layer) {
  std::atomic<uint8_t>& uses = UsesOf(block, layer);
  uint8_t seen = uses.load(std::memory_order_relaxed);
  if (!IsOut(seen) || !uses.compare_exchange_strong(seen, kExpected, std::memory_order_relaxed)) {
    return false;
  }
  AddBytes(block, static_cast<int64_t>(PagesOf(block, layer).size()));
  return true;
}

void PageResidency::Take(uint32_t block) {
  for (int32_t layer = 0; layer < layout_.layers; ++layer) {
    UsesOf(block, layer).store(kUse, std::memory_order_relaxed);
  }
  SetInMemory(block, static_cast<int64_t>(layout_.BlockStride()));
}

ByteRange PageResidency::RangeOf(uint32_t block) const {
  const size_t begin = block * layout_.BlockStride();
  return {.begin = begin, .end = begin + layout_.BlockStride()};
}

ByteRange PageResidency::RangeOf(uint32_t block, int32_t layer) const {
  const size_t begin =
      block * layout_.BlockStride() + static_cast<size_t>(layer) * layout_.LayerBytes();
  return {.begin = begin, .end = begin + layout_.LayerBytes()};
}

ByteRange PageResidency::PagesOf(uint32_t block, int32_t layer) const {
  const auto is_in = [&](int32_t neighbour) {
    return neighbour >= 0 && neighbour < layout_.layers &&
           !IsOut(UsesOf(block, neighbour).load(std::memory_order_relaxed));
  };
  const ByteRange unit = RangeOf(block, layer);
  const size_t rest = kSystemPageBytes - 1;  // of a page behind its first byte
  const size_t begin = unit.begin + (is_in(layer - 1) ? rest : 0);
  const size_t end = unit.end + (is_in(layer + 1) ? 0 : rest);
  const size_t first = begin / kSystemPageBytes * kSystemPageBytes;
  return {.begin = first, .end = std::max(first, end / kSystemPageBytes * kSystemPageBytes)};
}

void PageResidency::Count(uint32_t block, std::span<const unsigned char> in_memory) {
  int64_t pages = 0;
  for (size_t page = 0; page < in_memory.size(); ++page) {
    if (in_memory[page] == 1 || IsTold(block, page)) ++pages;
  }
  SetInMemory(block, pages * static_cast<int64_t>(kSystemPageBytes));
  const size_t first = RangeOf(block).begin;
  for (int32_t layer = 0; layer < layout_.layers; ++layer) {
    uint8_t seen = kOut;
    if (UsesOf(block, layer).load(std::memory_order_relaxed) != seen) continue;
    const ByteRange unit = PagesOf(block, layer);
    const auto flags =
        in_memory.subspan((unit.begin - first) / kSystemPageBytes, unit.size() / kSystemPageBytes);
    if (std::ranges::count(flags, 1) == 0) continue;
    UsesOf(block, layer).compare_exchange_strong(seen, kUntold, std::memory_order_relaxed);
  }
}

bool PageResidency::IsTold(uint32_t block, size_t page) const {
  const size_t begin = page * kSystemPageBytes, last = begin + kSystemPageBytes - 1;
  const auto end = std::min<size_t>(last / layout_.LayerBytes() + 1, layout_.layers);
  for (size_t layer = begin / layout_.LayerBytes(); layer < end; ++layer) {
    const auto uses = UsesOf(block, static_cast<int32_t>(layer)).load(std::memory_order_relaxed);
    if (!IsOut(uses)) return true;
  }
  return false;
}

int64_t PageResidency::Pass(uint32_t block, std::vector<ByteRange>& leave) {
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < layout_.layers; ++layer) {
    std::atomic<uint8_t>& uses = UsesOf(block, layer);
    uint8_t seen = uses.load(std::memory_order_relaxed);
    if (seen == kOut) continue;
    const uint8_t next = seen == kUntold ? kOut : static_cast<uint8_t>(seen - 1);
    // Whoever uses the unit at this moment makes it stay.
    const bool passed = uses.compare_exchange_strong(seen, next, std::memory_order_relaxed);
    if (!passed || next != kOut) continue;
    const ByteRange pages = PagesOf(block, layer);
    bytes += static_cast<int64_t>(pages.size());
    if (!leave.empty() && leave.back().end == pages.begin) {
      leave.back().end = pages.end;
    } else {
      leave.push_back(pages);
    }
  }
  // No less than none: the count is an estimate.
  AddBytes(block, -std::min(bytes, in_memory_[block].load(std::memory_order_relaxed)));
  return bytes;
}

void PageResidency::SetInMemory(uint32_t block, int64_t bytes) {
  const int64_t before = in_memory_[block].exchange(bytes, std::memory_order_relaxed);
  bytes_.fetch_add(bytes - before, std::memory_order_relaxed);
}

void PageResidency::AddBytes(uint32_t block, int64_t bytes) {
  in_memory_[block].fetch_add(bytes, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace penstock
