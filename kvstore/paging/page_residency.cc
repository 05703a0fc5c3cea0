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
    next = static_cast<uint8_t>(std::min(seen + kUse, int{kMax}));
  } while (!uses.compare_exchange_weak(seen, next, std::memory_order_relaxed));
  if (seen != kOut) return false;
  AddUnit(block, layer);
  return true;
}

bool PageResidency::Expect(uint32_t block, int32_t layer) {
  uint8_t seen = kOut;
  if (!UsesOf(block, layer).compare_exchange_strong(seen, kExpected, std::memory_order_relaxed)) {
    return false;
  }
  AddUnit(block, layer);
  return true;
}

void PageResidency::AddUnit(uint32_t block, int32_t layer) {
  const auto bytes = static_cast<int64_t>(OwnPages(layer).size());
  in_memory_[block].fetch_add(bytes, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
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

ByteRange PageResidency::OwnPages(int32_t layer) const {
  const auto start = [&](int32_t of) {
    return static_cast<size_t>(of) * layout_.LayerBytes() / kSystemPageBytes * kSystemPageBytes;
  };
  const bool last = layer + 1 == layout_.layers;
  return {.begin = start(layer), .end = last ? layout_.BlockStride() : start(layer + 1)};
}

void PageResidency::Count(uint32_t block, std::span<const unsigned char> in_memory) {
  const auto pages = std::count(in_memory.begin(), in_memory.end(), 1);
  SetInMemory(block, static_cast<int64_t>(pages) * static_cast<int64_t>(kSystemPageBytes));
}

int64_t PageResidency::Pass(uint32_t block, std::span<const unsigned char> in_memory,
                            std::vector<ByteRange>& leave) {
  int64_t bytes = 0;
  const size_t first = block * layout_.BlockStride();
  for (int32_t layer = 0; layer < layout_.layers; ++layer) {
    std::atomic<uint8_t>& uses = UsesOf(block, layer);
    uint8_t seen = uses.load(std::memory_order_relaxed);
    const uint8_t next = seen == kOut ? kOut : static_cast<uint8_t>(seen - 1);
    // Whoever uses the unit at this moment makes it stay.
    const bool passed = uses.compare_exchange_strong(seen, next, std::memory_order_relaxed);
    if (!passed || next != kOut) continue;
    const ByteRange pages = OwnPages(layer);
    for (size_t at = pages.begin; at < pages.end; at += kSystemPageBytes) {
      if (in_memory[at / kSystemPageBytes] == 0) continue;
      const size_t begin = first + at;
      bytes += static_cast<int64_t>(kSystemPageBytes);
      if (!leave.empty() && leave.back().end == begin) {
        leave.back().end += kSystemPageBytes;
      } else {
        leave.push_back({.begin = begin, .end = begin + kSystemPageBytes});
      }
    }
  }
  return bytes;
}

void PageResidency::SetInMemory(uint32_t block, int64_t bytes) {
  const int64_t before = in_memory_[block].exchange(bytes, std::memory_order_relaxed);
  bytes_.fetch_add(bytes - before, std::memory_order_relaxed);
}

}  // namespace penstock
