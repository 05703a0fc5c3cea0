#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace penstock {

// Continuous batching: chooses the sequences of the next step. Pure: no clock, no I/O, no lock.
// Round robin when more sequences run than fit a step.
class DecodeScheduler {
 public:
  explicit DecodeScheduler(size_t batch_max) : batch_max_(batch_max) {}

  void Add(uint64_t sequence) { turns_.push_back(sequence); }
  void Remove(uint64_t sequence);
  // At most batch_max sequences, which move to the end of the queue.
  std::vector<uint64_t> Next();
  // The same where the pages of all sequences may be too much for the memory. Then it is the turn
  // of the oldest that fit together (their ids are the lowest), and of one at least: taking turns
  // would read pages from the disk at every step. The others wait until one of these ends.
  std::vector<uint64_t> NextWithin(uint64_t memory_bytes,
                                   const std::function<uint64_t(uint64_t sequence)>& bytes_wanted);
  size_t size() const { return turns_.size(); }

 private:
  const size_t batch_max_;
  std::deque<uint64_t> turns_;
};

}  // namespace penstock
