#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kvstore/tiers/nvme/nvme_tier.h"

namespace penstock {

// A raw file of the same requests that the NVMe tier makes, for its limit.
class RawFile {
 public:
  static absl::StatusOr<std::unique_ptr<RawFile>> Create(const std::string& path, uint64_t bytes,
                                                         size_t request_bytes);
  ~RawFile();

  // Seconds for all requests of the file one after the other, and until they are on the disk.
  absl::StatusOr<double> WriteAll(size_t under_way);
  // Seconds for `count` requests in random places.
  absl::StatusOr<double> ReadRandom(size_t count, size_t under_way);

 private:
  RawFile(std::string path, OwnedFd fd, std::unique_ptr<IoQueue> io, uint64_t bytes,
          size_t request_bytes);
  absl::StatusOr<double> Run(size_t count, size_t under_way, bool write);

  const std::string path_;
  const OwnedFd fd_;
  const std::unique_ptr<IoQueue> io_;
  const uint64_t bytes_;
  const size_t request_bytes_;
  std::vector<DirectBuffer> buffers_;
  std::mt19937_64 random_{1};
};

// An NVMe tier on this thread, with blocks that are numbered.
class TierOnDisk {
 public:
  static absl::StatusOr<std::unique_ptr<TierOnDisk>> Open(const std::string& directory,
                                                          const KvLayout& layout, uint64_t bytes);
  ~TierOnDisk();  // Seals what is open.

  // Seconds for blocks [0, count), until they are acknowledged and their segments sealed.
  absl::StatusOr<double> WriteAll(uint32_t count);
  // Seconds for `count` blocks out of [0, blocks), one a request.
  absl::StatusOr<double> ReadRandom(uint32_t blocks, uint32_t count, size_t under_way);
  const NvmeTier& tier() const { return *tier_; }
  double rebuild_s() const { return rebuild_s_; }
  static BlockName Name(uint32_t number);

 private:
  TierOnDisk() = default;
  void Settle();  // until nothing is under way

  StoreFiles files_;
  SteadyClock clock_;
  std::unique_ptr<IoQueue> io_;
  std::unique_ptr<NvmeTier> tier_;
  size_t block_bytes_ = 0;
  double rebuild_s_ = 0;
  std::mt19937_64 random_{1};
};

// The layout of blocks of `bytes` bytes.
KvLayout LayoutOfBytes(size_t bytes);

}  // namespace penstock
