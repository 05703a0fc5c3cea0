#include "kernels/selection/known_bounds.h"

namespace penstock {
namespace {

uint64_t SerialOf(const PagedKv& kv, uint32_t block) {
  return kv.serials == nullptr ? 0 : kv.serials[block].load(std::memory_order_relaxed);
}

}  // namespace

bool KnownBounds::Has(const PagedKv& kv, uint32_t block) const {
  const uint64_t serial = SerialOf(kv, block);
  return serial != 0 && kv.layout == layout_ && block < serials_.size() &&
         serials_[block] == serial;
}

void KnownBounds::Forget(const PagedKv& kv, uint32_t block) {
  if (kv.layout != layout_) {
    serials_.clear();
    layout_ = kv.layout;
  }
  if (serials_.size() <= block) serials_.resize(static_cast<size_t>(kv.blocks));
  serials_[block] = 0;
}

void KnownBounds::Remember(const PagedKv& kv, uint32_t block) {
  serials_[block] = SerialOf(kv, block);
}

}  // namespace penstock
