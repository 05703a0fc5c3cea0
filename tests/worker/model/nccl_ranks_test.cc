// The exchange between a worker's GPUs, over a fake of NCCL and emulated GPUs.

#include "worker/model/nccl_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_device.h"
#include "model/cuda/ranks/rank_threads.h"
#include "tests/contract/wire_support.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

constexpr size_t kBytes = 4096;

// The memory of a rank's GPU.
struct RankMemory {
  std::unique_ptr<cuda::CudaDevice> device;
  cuda::DeviceBuffer own, all;
};

class NcclRanksTest : public testing::TestWithParam<int> {
 protected:
  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "8"};
  void SetUp() override { fake_.Reset(); }
  void TearDown() override {
    links_.reset();
    fake_.ExpectClean();
  }

  absl::Status Open(int ranks, const NcclRanks::Times& times = {}) {
    ASSIGN_OR_RETURN(auto library, NcclLibrary::Load(FAKE_NCCL));
    ASSIGN_OR_RETURN(links_, NcclRanks::Create(std::move(library), ranks, times));
    threads_ = std::make_unique<RankThreads>(ranks);
    memory_.resize(static_cast<size_t>(ranks));
    return threads_->Run([this](int rank) { return OpenRank(rank); });
  }
  absl::Status OpenRank(int rank) {
    RankMemory& memory = memory_[static_cast<size_t>(rank)];
    ASSIGN_OR_RETURN(memory.device, cuda::CudaDevice::Open(rank));
    ASSIGN_OR_RETURN(memory.own, cuda::DeviceBuffer::Create(kBytes, "part"));
    ASSIGN_OR_RETURN(memory.all, cuda::DeviceBuffer::Create(kBytes * memory_.size(), "whole"));
    return links_->Open(rank);
  }
  std::byte* Part(const RankMemory& memory, int rank) const {
    return memory.all.as<std::byte>() + static_cast<size_t>(rank) * kBytes;
  }
  absl::Status Gather(int rank, const std::byte* from) {
    const RankMemory& memory = memory_[static_cast<size_t>(rank)];
    return links_->AllGather(rank, from, memory.all.as<void>(), kBytes, memory.device->stream());
  }

  FakeNccl fake_;
  std::unique_ptr<NcclRanks> links_;
  std::unique_ptr<RankThreads> threads_;
  std::vector<RankMemory> memory_;
};

// Enqueued without a wait between, from elsewhere and in place, each of what the stream brought.
TEST_P(NcclRanksTest, EveryRankHasAllInOrder) {
  const int ranks = GetParam();
  ASSERT_EQ(Message(Open(ranks)), "");
  std::vector<std::vector<std::byte>> got(static_cast<size_t>(ranks));
  const absl::Status status = threads_->Run([&](int rank) -> absl::Status {
    const RankMemory& memory = memory_[static_cast<size_t>(rank)];
    void* stream = memory.device->stream();
    for (int turn = 1; turn <= 3; ++turn) {
      std::byte* from = turn == 2 ? Part(memory, rank) : memory.own.as<std::byte>();
      cuda::FillDevice(from, 10 * turn + rank, kBytes, stream);
      RETURN_IF_ERROR(Gather(rank, from));
      auto& whole = got[static_cast<size_t>(rank)];
      whole.resize(whole.size() + memory.all.bytes());
      std::byte* to = whole.data() + whole.size() - memory.all.bytes();
      cuda::CopyToHost(to, memory.all.as<void>(), memory.all.bytes(), stream);
    }
    return links_->Look(rank);
  });
  ASSERT_EQ(Message(status), "");
  std::vector<std::byte> want;
  for (int turn = 1; turn <= 3; ++turn) {
    for (int rank = 0; rank < ranks; ++rank) {
      want.insert(want.end(), kBytes, static_cast<std::byte>(10 * turn + rank));
    }
  }
  for (const auto& whole : got) EXPECT_EQ(whole, want);
  EXPECT_EQ(fake_.Count("ncclAllGather"), 3 * ranks);
}

INSTANTIATE_TEST_SUITE_P(Degrees, NcclRanksTest, testing::Values(1, 2, 4, 8));

TEST_F(NcclRanksTest, ARankThatDoesNotOpenIsAnError) {
  fake_.Inject("init_fails", 1);
  EXPECT_EQ(Open(2).code(), absl::StatusCode::kUnavailable);
}

TEST_F(NcclRanksTest, NobodyWaitsForeverForTheOthers) {
  fake_.Inject("init_stalls", 1);
  const absl::Status status = Open(2, {.open = milliseconds(50)});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), testing::HasSubstr("50 ms"));
}

TEST_F(NcclRanksTest, WhatFailsOnTheGpuIsSeen) {
  ASSERT_EQ(Message(Open(2)), "");
  fake_.Inject("error_at", 2);  // of the two ranks' first
  ASSERT_EQ(Message(threads_->Run([&](int rank) {
              return Gather(rank, memory_[static_cast<size_t>(rank)].own.as<std::byte>());
            })),
            "");
  // As a worker's thread does that waits for its GPU, in vain.
  threads_->Start([&](int rank) {
    cuda::Synchronize(memory_[static_cast<size_t>(rank)].device->stream());
    return absl::OkStatus();
  });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (links_->Look(0).ok() && links_->Look(1).ok()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  links_->Abort();
  EXPECT_EQ(Message(threads_->Join()), "");
  EXPECT_EQ(fake_.Count("ncclCommAbort"), 2);
}

}  // namespace
}  // namespace penstock
