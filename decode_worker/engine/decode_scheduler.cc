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

std::vector<uint64_t> DecodeScheduler::NextWithin(
    uint64_t memory_bytes, const std::function<uint64_t(uint64_t sequence)>& bytes_wanted) {
  std::vector<uint64_t> oldest(turns_.begin(), turns_.end());
  std::sort(oldest.begin(), oldest.end());
  std::vector<uint64_t> batch;
  uint64_t bytes = 0;
  for (const uint64_t sequence : oldest) {
    const uint64_t more = bytes_wanted(sequence);
    if (!batch.empty() && bytes + more > memory_bytes) continue;
    batch.push_back(sequence);
    bytes += more;
  }
  if (batch.size() == turns_.size()) return Next();
  batch.resize(std::min(batch.size(), batch_max_));
  return batch;
}

}  // namespace penstock
