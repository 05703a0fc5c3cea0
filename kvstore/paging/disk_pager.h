#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "kernels/kv_pager.h"
#include "kernels/paged_kv.h"
#include "kvstore/paging/page_file.h"
#include "kvstore/paging/page_residency.h"

namespace penstock {

// This room, kvstore/paging, keeps the pages of a pool in a file that is larger than the memory for
// them. The arena is the mapped file, so all other code reads and writes pages as in memory.
// It knows blocks and layers; it does not know sequences, requests or models.

struct DiskPagerStats {
  uint64_t file_bytes = 0;
  uint64_t memory_bytes = 0;    // the limit
  uint64_t resident_bytes = 0;  // in memory, as an estimate
  uint64_t hits = 0;            // layers of blocks that were wanted and in memory, or guessed
  uint64_t misses = 0;          // and that were read then
  uint64_t bytes_read = 0;      // for misses and guesses
  uint64_t bytes_dropped = 0;   // from memory
};

// Reads what steps will want, and takes out of memory what was not used for longest, so that about
// `memory_bytes` of the file are in memory. More are there while more is written than the disk
// takes. A thread of its own writes and drops.
//
// If the disk fails, the process ends, because the pages are lost with the disk.
class DiskPager final : public KvPager {
 public:
  struct Options {
    std::string directory;      // of the file
    int64_t blocks = 0;         // of the file
    uint64_t memory_bytes = 0;  // limit of what is in memory
  };

  // INVALID_ARGUMENT if the memory is less than one layer of all blocks, which a step may have to
  // read at once; else errors of PageFile::Create.
  static absl::StatusOr<std::unique_ptr<DiskPager>> Create(const KvLayout& layout, Options options);
  ~DiskPager() override;

  // The arena, for BlockPool::CreateOver. This object must outlive the pool.
  PagedKv pages();

  uint64_t memory_bytes() const override { return memory_bytes_; }
  void OnTaken(uint32_t block) override;
  std::vector<uint32_t> OnWanted(std::span<const uint32_t> blocks, int32_t layer) override;
  std::vector<uint32_t> OnGuessed(std::span<const uint32_t> blocks, int32_t layer) override;

  DiskPagerStats stats() const;

 private:
  DiskPager(const KvLayout& layout, const Options& options, std::unique_ptr<PageFile> file);

  std::vector<uint32_t> ReadMissing(std::span<const uint32_t> blocks, int32_t layer,
                                    bool (PageResidency::*use)(uint32_t, int32_t));
  bool IsOver() const { return residency_.bytes() > static_cast<int64_t>(memory_bytes_); }
  void AskIfOver();
  void Run() EXCLUDES(mutex_);
  bool WaitForWork() EXCLUDES(mutex_);
  void MakeRoom();
  int64_t PassSome(int64_t bytes);
  void CountSome();
  uint32_t NextBlock(uint32_t& hand) const;

  const KvLayout layout_;
  const uint64_t memory_bytes_;
  const std::unique_ptr<PageFile> file_;
  PageResidency residency_;
  std::atomic<uint64_t> hits_ = 0, misses_ = 0, bytes_read_ = 0, bytes_dropped_ = 0;
  std::atomic<bool> closed_ = false;
  std::atomic<bool> asked_ = false;  // the thread was told that too much is in memory

  Mutex mutex_;
  CondVar work_;  // asked_ or closed_ was set

  // Used by thread_ only.
  uint32_t hand_ = 0;     // the next block that may leave
  uint32_t counted_ = 0;  // the next block whose count is corrected
  std::chrono::steady_clock::time_point last_count_{};
  std::vector<unsigned char> in_memory_;
  std::vector<ByteRange> leave_;
  std::thread thread_;
};

}  // namespace penstock
