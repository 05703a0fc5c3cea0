#pragma once

#include <cstddef>
#include <deque>
#include <utility>

namespace penstock {

// Batches (protobuf messages) that are written one after the other: what comes while one is on its
// way goes into the next. A batch that has grown to `weight_max` is followed by another. One spent
// batch is used again, with all that it has allocated. One thread at a time.
template <class Batch>
class BatchQueue {
 public:
  explicit BatchQueue(size_t weight_max) : weight_most_(weight_max) {}

  // The batch to add something of this weight to, which must be done before the next call.
  Batch& Add(size_t weight) {
    if (!waiting() || weight_ + weight > weight_most_) {
      batches_.push_back(std::move(spare_));
      weight_ = 0;
    }
    weight_ += weight;
    return batches_.back();
  }

  bool waiting() const { return batches_.size() > (sending_ ? 1 : 0); }
  bool sending() const { return sending_; }
  bool empty() const { return batches_.empty(); }

  // The first one, to be written: it stays where it is until OnSent. Only while one is waiting and
  // none is being sent.
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
  // Forgets what is waiting.
  void DropWaiting() { batches_.resize(sending_ ? 1 : 0); }

 private:
  const size_t weight_most_;
  std::deque<Batch> batches_;  // the front one is being written while `sending_`
  size_t weight_ = 0;          // of the last one
  bool sending_ = false;
  Batch spare_;
};

}  // namespace penstock
