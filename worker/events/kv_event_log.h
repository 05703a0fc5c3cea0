#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

namespace penstock {

// The latest published batches with their sequence numbers, for subscribers that missed some.
// Bounded by batches and by bytes: the oldest go first. One thread.
class KvEventLog {
 public:
  static constexpr size_t kBatchesMax = 10'000;  // as vLLM's buffer_steps
  static constexpr size_t kBytesMax = 64 << 20;

  struct Batch {
    uint64_t sequence = 0;
    std::shared_ptr<const std::string> payload;  // shared with the connections that send it
  };

  explicit KvEventLog(size_t batches_max = kBatchesMax, size_t bytes_max = kBytesMax);

  // Numbers the batch: 0, 1, 2, ...
  const Batch& Append(std::string payload);
  // The first kept batch whose number is `sequence` or greater; null if there is none.
  const Batch* Find(uint64_t sequence) const;
  uint64_t next() const { return next_; }  // the number of the next batch
  size_t bytes() const { return bytes_; }

 private:
  const size_t batches_max_;
  const size_t bytes_max_;
  std::deque<Batch> batches_;  // their numbers follow each other
  size_t bytes_ = 0;
  uint64_t next_ = 0;
};

}  // namespace penstock
