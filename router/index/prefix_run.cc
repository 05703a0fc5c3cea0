#include "router/index/prefix_run.h"

#include <cstdlib>
#include <new>

#include "base/check.h"

namespace penstock {

PrefixRun* PrefixRun::New(const BlockId* ids, uint32_t length,
                          std::span<const RunHolding> holdings) {
  const size_t bytes = sizeof(PrefixRun) + holdings.size() * (sizeof(uint64_t) + sizeof(uint16_t));
  void* memory = std::malloc(bytes);
  PENSTOCK_CHECK(memory != nullptr, "out of memory");
  auto* run = new (memory) PrefixRun(ids, length, static_cast<uint32_t>(holdings.size()));
  auto* blocks = const_cast<uint64_t*>(run->blocks());
  auto* keys = const_cast<uint16_t*>(run->keys());
  for (size_t i = 0; i < holdings.size(); ++i) {
    const RunHolding& holding = holdings[i];
    blocks[i] = holding.blocks;
    keys[i] = static_cast<uint16_t>(holding.worker << 2 | static_cast<uint16_t>(holding.tier));
  }
  return run;
}

}  // namespace penstock
