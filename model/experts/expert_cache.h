#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "kernels/buffer.h"
#include "model/experts/expert_file.h"
#include "model/experts/expert_slots.h"
#include "model/experts/gated_weights.h"

namespace penstock {

// This room, model/experts, keeps the experts of a mixture that is larger than memory: all of them
// in a file, the hot ones in a bounded cache. It may use base/ and kernels/ only. It does not know
// layers, routers or checkpoints.

struct ExpertCacheStats {
  uint64_t hits = 0;         // experts that a layer needed and that were in memory
  uint64_t misses = 0;       // and that were not
  uint64_t bytes_read = 0;   // from the file
  uint64_t read_errors = 0;  // reads that failed
  double wait_s = 0;         // time that Get waited for the disk
  uint64_t bytes_total = 0;  // capacity
  uint64_t bytes_resident = 0;
  uint64_t file_bytes = 0;
};

// Owns the matrices of experts: a file with all of them, slots of memory for some, and threads that
// read. First Add, then Start, then steps: for each layer Begin, and for each of its experts in
// order Get, the product, Release. One thread calls these; stats() is for any thread.
class ExpertCache {
 public:
  struct Options {
    std::string directory;  // of the file
    uint64_t bytes = 0;     // limit of the experts in memory
  };

  static absl::StatusOr<std::unique_ptr<ExpertCache>> Create(Options options);
  ~ExpertCache();
  ExpertCache(const ExpertCache&) = delete;
  ExpertCache& operator=(const ExpertCache&) = delete;

  // Moves an expert's matrices into the file and names it: GatedWeights::cached_as.
  // INVALID_ARGUMENT if the limit is below one expert; else errors of ExpertFile::Append.
  absl::Status Add(GatedWeights& expert);
  void Start();

  // The experts that a layer needs, in the order of Get, and the tokens of its step. Starts to read
  // those that are not in memory, as far as others may leave.
  void Begin(std::span<const ExpertUse> uses, int64_t tokens) EXCLUDES(mutex_);
  // The expert with its matrices, until Release. Waits for the disk. Errors are those of
  // ExpertFile::Read; then the layer cannot be computed, and the next Begin forgets it.
  absl::StatusOr<const GatedWeights*> Get(const GatedWeights& expert) EXCLUDES(mutex_);
  void Release(int32_t expert) EXCLUDES(mutex_);

  ExpertCacheStats stats() const EXCLUDES(mutex_);
  size_t bytes() const { return memory_.bytes(); }  // memory owned

 private:
  // The memory of one expert.
  struct Slot {
    int32_t number = -1;  // of the expert that it has or is to have
    bool reading = false;
    bool fresh = false;        // read since the last Get
    GatedWeights expert = {};  // over the memory; made by the first Get
  };

  explicit ExpertCache(Options options) : options_(std::move(options)) {}

  std::byte* MemoryOf(int32_t slot) const;
  void ReadAhead() REQUIRES(mutex_);
  void Read(int32_t expert, int32_t slot) REQUIRES(mutex_);
  void ReadUntilClosed() EXCLUDES(mutex_);
  void EndRead(int32_t slot, const absl::Status& status) REQUIRES(mutex_);

  const Options options_;
  std::unique_ptr<ExpertFile> file_;
  size_t slot_bytes_ = 0;  // those of the largest expert
  Buffer memory_;

  mutable Mutex mutex_;
  CondVar queued_;                                // a slot is to be read, or the cache closes
  CondVar ended_;                                 // a read has ended
  std::deque<int32_t> queue_ GUARDED_BY(mutex_);  // slots to read, each at most once
  bool closed_ GUARDED_BY(mutex_) = false;
  std::optional<ExpertSlots> decisions_ GUARDED_BY(mutex_);
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  std::deque<int32_t> ahead_ GUARDED_BY(mutex_);               // of the layer, not looked at yet
  std::map<int32_t, absl::Status> failed_ GUARDED_BY(mutex_);  // the layer's experts
  ExpertCacheStats stats_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace penstock
