#pragma once

#include <cstddef>
#include <deque>
#include <utility>

namespace penstock {

// Collects messages into batches (protobuf messages) that are written one at a time: messages that
// arrive during a write go into the next batch. A batch that would exceed `weight_max` is closed
// and a new one started. The last written batch is reused with its allocated memory. One thread at
// a time.
template <class Batch>
class BatchQueue {
 public:
  explicit BatchQueue(size_t weight_max) : weight_max_(weight_max) {}

  // Returns the batch to which a message of this weight must be added, before the next call.
  Batch& Add(size_t weight) {
    if (!waiting() || weight_ + weight > weight_max_) {
      batches_.push_back(std::move(spare_));
      weight_ = 0;
    }
    weight_ += weight;
    return batches_.back();
  }

  bool waiting() const { return batches_.size() > (sending_ ? 1 : 0); }
  bool sending() const { return sending_; }
  bool empty() const { return batches_.empty(); }

  // Returns the oldest batch, for writing; it stays valid until OnSent. Requires waiting() and not
  // sending().
  const Batch& Send() {
    sending_ = true;
    return batches_.front();
  }
  void OnSent() {
    sending_ = false;
    spare_ = std::move(batches_.front());
    spare_.Clear();
    batches_.pop_front();
  }
  // Drops all batches that are not being written.
  void DropWaiting() { batches_.resize(sending_ ? 1 : 0); }

 private:
  const size_t weight_max_;
  std::deque<Batch> batches_;  // the front is being written while `sending_`
  size_t weight_ = 0;          // of the last batch
  bool sending_ = false;
  Batch spare_;
};

}  // namespace penstock
