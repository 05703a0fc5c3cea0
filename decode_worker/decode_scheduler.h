#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace penstock {

// Continuous batching: which sequences take part in the next step. Pure: no clock, no I/O, no lock.
// When more run than fit a step they take turns, so that none waits longer than the others.
class DecodeScheduler {
 public:
  explicit DecodeScheduler(size_t batch_max) : batch_max_(batch_max) {}

  void Add(uint64_t sequence) { turns_.push_back(sequence); }
  void Remove(uint64_t sequence);
  // At most batch_max sequences; those go to the end of the line.
  std::vector<uint64_t> Next();
  size_t size() const { return turns_.size(); }

 private:
  const size_t batch_max_;
  std::deque<uint64_t> turns_;
};

}  // namespace penstock
