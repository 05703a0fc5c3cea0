#include "worker/events/kv_event_log.h"

#include <utility>

namespace penstock {

KvEventLog::KvEventLog(size_t batches_max, size_t bytes_max)
    : batches_max_(batches_max), bytes_max_(bytes_max) {}

const KvEventLog::Batch& KvEventLog::Append(std::string payload) {
  bytes_ += payload.size();
  batches_.push_back(
      {.sequence = next_++, .payload = std::make_shared<const std::string>(std::move(payload))});
  // The newest batch stays, however large it is.
  while (batches_.size() > 1 && (batches_.size() > batches_max_ || bytes_ > bytes_max_)) {
    bytes_ -= batches_.front().payload->size();
    batches_.pop_front();
  }
  return batches_.back();
}

const KvEventLog::Batch* KvEventLog::Find(uint64_t sequence) const {
  if (batches_.empty() || sequence >= next_) return nullptr;
  const uint64_t first = batches_.front().sequence;
  return &batches_[sequence > first ? sequence - first : 0];
}

}  // namespace penstock
