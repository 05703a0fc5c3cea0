#include "lab/micro/store_disk.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

constexpr Duration kPatience = std::chrono::milliseconds(100);

double Seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

void FillWithNoise(std::span<std::byte> bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, sizeof(word));
  }
}

}  // namespace

KvLayout LayoutOfBytes(size_t bytes) {
  // One layer of one head of 16 tokens: K and V of head_dim bf16 each.
  return {.layers = 1,
          .kv_heads = 1,
          .head_dim = static_cast<int32_t>(bytes / (2 * 16 * sizeof(Bf16))),
          .block_tokens = 16};
}

absl::StatusOr<std::unique_ptr<RawFile>> RawFile::Create(const std::string& path, uint64_t bytes,
                                                         size_t request_bytes) {
  StoreFiles files;
  ASSIGN_OR_RETURN(OwnedFd fd, files.Create(path, bytes));
  ASSIGN_OR_RETURN(auto io, MakeIoQueue(IoBackend::kAuto));
  return std::unique_ptr<RawFile>(
      new RawFile(path, std::move(fd), std::move(io), bytes, request_bytes));
}

RawFile::RawFile(std::string path, OwnedFd fd, std::unique_ptr<IoQueue> io, uint64_t bytes,
                 size_t request_bytes)
    : path_(std::move(path)),
      fd_(std::move(fd)),
      io_(std::move(io)),
      bytes_(bytes),
      request_bytes_(request_bytes) {}

RawFile::~RawFile() { StoreFiles().Remove(path_).IgnoreError(); }

absl::StatusOr<double> RawFile::WriteAll(size_t under_way) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(Run(bytes_ / request_bytes_, under_way, /*write=*/true).status());
  RETURN_IF_ERROR(StoreFiles().Finish(fd_.get(), bytes_));
  return Seconds(std::chrono::steady_clock::now() - start);
}

absl::StatusOr<double> RawFile::ReadRandom(size_t count, size_t under_way) {
  return Run(count, under_way, /*write=*/false);
}

absl::StatusOr<double> RawFile::Run(size_t count, size_t under_way, bool write) {
  while (buffers_.size() < under_way) {
    buffers_.emplace_back(request_bytes_);
    FillWithNoise(buffers_.back().bytes(), buffers_.size());
  }
  const uint64_t places = bytes_ / request_bytes_;
  absl::Status failed;
  std::vector<size_t> free(under_way);
  for (size_t i = 0; i < under_way; ++i) free[i] = i;
  const auto start = std::chrono::steady_clock::now();
  for (size_t next = 0; next < count || io_->open() > 0;) {
    while (next < count && !free.empty()) {
      const size_t buffer = free.back();
      free.pop_back();
      const uint64_t place = write ? next : random_() % places;
      ++next;
      IoRequest request{.write = write,
                        .fd = fd_.get(),
                        .offset = place * request_bytes_,
                        .pieces = {{buffers_[buffer].bytes().data(), request_bytes_}}};
      request.done = [&free, &failed, buffer](const absl::Status& status) {
        free.push_back(buffer);
        if (!status.ok()) failed = status;
      };
      io_->Submit(std::move(request));
    }
    io_->Poll(kPatience);
  }
  RETURN_IF_ERROR(failed);
  return Seconds(std::chrono::steady_clock::now() - start);
}

BlockName TierOnDisk::Name(uint32_t number) {
  // Spread like hashes.
  const auto id = [](uint64_t state) {
    BlockId made;
    for (size_t half = 0; half < 2; ++half) {
      state += 0x9e3779b97f4a7c15u;
      uint64_t word = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
      word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
      word ^= word >> 31;
      std::memcpy(made.bytes.data() + half * 8, &word, sizeof(word));
    }
    return made;
  };
  return {.id = id(uint64_t{number} * 2 + 2), .parent = id(uint64_t{number} * 2)};
}

absl::StatusOr<std::unique_ptr<TierOnDisk>> TierOnDisk::Open(const std::string& directory,
                                                             const KvLayout& layout,
                                                             uint64_t bytes) {
  std::unique_ptr<TierOnDisk> disk(new TierOnDisk());
  disk->block_bytes_ = layout.BlockStride();
  ASSIGN_OR_RETURN(disk->io_, MakeIoQueue(IoBackend::kAuto));
  NvmeOptions options{.directory = directory, .bytes = bytes};
  options.format = {.model_fingerprint = 1, .layout = layout};
  options.io_timeout = std::chrono::seconds(60);
  const NvmeEvents events{.stored = [](const BlockName&) {},
                          .removed = [](const BlockName&, EvictionReason) {},
                          .served = [](bool) {}};
  ASSIGN_OR_RETURN(disk->tier_, NvmeTier::Create(std::move(options), disk->files_, *disk->io_,
                                                 disk->clock_, events));
  const auto start = std::chrono::steady_clock::now();
  disk->tier_->Start();
  disk->Settle();
  disk->rebuild_s_ = Seconds(std::chrono::steady_clock::now() - start);
  if (!disk->tier_->CanWrite()) return Unavailable("bench: {} cannot be written", directory);
  return disk;
}

TierOnDisk::~TierOnDisk() {
  if (tier_ == nullptr) return;
  tier_->BeginStop();
  Settle();
}

void TierOnDisk::Settle() {
  while (!tier_->quiet() || io_->open() > 0) io_->Poll(kPatience);
}

absl::StatusOr<double> TierOnDisk::WriteAll(uint32_t count) {
  // More buffers than blocks under way, as DRAM's slots are.
  std::vector<DirectBuffer> buffers;
  std::vector<size_t> free;
  for (size_t i = 0; i < 64; ++i) {
    free.push_back(i);
    buffers.emplace_back(block_bytes_);
    FillWithNoise(buffers.back().bytes(), i);
  }
  uint32_t kept = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t next = 0; next < count || !tier_->quiet();) {
    while (next < count && !free.empty() && tier_->CanWrite()) {
      const size_t buffer = free.back();
      free.pop_back();
      tier_->Write({.name = Name(next++),
                    .uses = 2,
                    .bytes = buffers[buffer].bytes(),
                    .done = [&free, &kept, buffer](bool ok) {
                      free.push_back(buffer);
                      kept += ok ? 1 : 0;
                    }});
    }
    io_->Poll(kPatience);
  }
  tier_->BeginStop();  // Seals the last segment, too.
  Settle();
  const double seconds = Seconds(std::chrono::steady_clock::now() - start);
  if (kept != count) return Unavailable("bench: {} of {} blocks were written", kept, count);
  return seconds;
}

absl::StatusOr<double> TierOnDisk::ReadRandom(uint32_t blocks, uint32_t count, size_t under_way) {
  std::vector<DirectBuffer> buffers;
  std::vector<size_t> free;
  for (size_t i = 0; i < under_way; ++i) {
    free.push_back(i);
    buffers.emplace_back(block_bytes_);
  }
  uint32_t whole = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t next = 0; next < count || io_->open() > 0;) {
    while (next < count && !free.empty()) {
      const size_t buffer = free.back();
      free.pop_back();
      ++next;
      NvmeRead read{.ids = {Name(static_cast<uint32_t>(random_() % blocks)).id},
                    .targets = {buffers[buffer].bytes().data()}};
      read.done = [&free, &whole, buffer](const std::vector<NvmeReadState>& states) {
        free.push_back(buffer);
        whole += states[0] == NvmeReadState::kWhole ? 1 : 0;
      };
      tier_->Read(std::move(read));
    }
    io_->Poll(kPatience);
  }
  const double seconds = Seconds(std::chrono::steady_clock::now() - start);
  if (whole != count) return DataLoss("bench: {} of {} blocks were read whole", whole, count);
  return seconds;
}

}  // namespace penstock
