#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace penstock {

// A tensor as it is in a file.
struct NamedBytes {
  std::string name;
  std::span<const std::byte> bytes;
};

// XXH3-64 of the bytes, seeded by the name.
uint64_t HashOf(const NamedBytes& tensor);

// Owns threads that hash the tensors of a checkpoint. Because they read the mapped files in order,
// whoever reads the tensors later finds them in memory. The destructor stops the threads.
class TensorHashes {
 public:
  // `tensors` outlive this, and their bytes stay mapped.
  TensorHashes(std::span<const NamedBytes> tensors, int threads);
  ~TensorHashes();
  TensorHashes(const TensorHashes&) = delete;
  TensorHashes& operator=(const TensorHashes&) = delete;

  // Waits until all tensors are hashed and returns the sum of HashOf, which does not depend on
  // their order. One thread may call it.
  uint64_t Sum();

 private:
  void HashUntilEmpty();

  const std::span<const NamedBytes> tensors_;
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> sum_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace penstock
