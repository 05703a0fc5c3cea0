#include "decode_worker/engine/decode_scheduler.h"

#include <algorithm>

namespace penstock {

void DecodeScheduler::Remove(uint64_t sequence) {
  turns_.erase(std::remove(turns_.begin(), turns_.end(), sequence), turns_.end());
}

std::vector<uint64_t> DecodeScheduler::Next() {
  const auto count = static_cast<std::ptrdiff_t>(std::min(batch_max_, turns_.size()));
  std::vector<uint64_t> batch(turns_.begin(), turns_.begin() + count);
  std::rotate(turns_.begin(), turns_.begin() + count, turns_.end());
  return batch;
}

}  // namespace penstock
