// A prefix that one worker has and another one needs is read from the first one's store, from
// whatever tier, instead of being computed: the same tokens, and whatever goes wrong on the way,
// still the same tokens and nothing left behind. The plan is forced: the test calls the workers as
// a router would.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "tests/e2e/peer_fixture.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;

TEST_F(PeerTest, APrefixIsReadFromDevicePages) {
  Cluster cluster({.prefill = 2});
  const WorkerProcess& owner = cluster.prefill()[0];
  const WorkerProcess& reader = cluster.prefill()[1];
  const WorkerProcess& decode = cluster.decode()[0];
  for (const uint32_t seed : {4u, 5u}) {
    const TestRequest request = Prompt(600, seed);
    Warm(request, owner, decode);
    const auto peer = PeerOf(owner, reader, FullBlocks(request));
    const PlannedAnswer answer = Attempt(request, reader, decode).Run(peer);
    ExpectExact(request, answer, cluster);
    ExpectRead(answer, FullBlocks(request));
    EXPECT_EQ(answer.first.cached_tokens(), 592u);
    EXPECT_EQ(answer.first.computed_tokens(), 8u);
    // From now on it is the reader's own, and asking again is needless.
    const PlannedAnswer again = Attempt(request, reader, decode).Run(peer);
    ExpectExact(request, again, cluster);
    EXPECT_EQ(again.first.peer().outcome(), v1::PeerRead::NEEDLESS);
    EXPECT_EQ(again.first.cached_tokens(), 592u);
  }
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

TEST_F(PeerTest, ADecodeWorkersPrefixIsReadWithItsAnswer) {
  Cluster cluster({.prefill = 2});
  const WorkerProcess& decode = cluster.decode()[0];
  TestRequest request = Prompt(320, 6);
  request.tokens_max = 40;
  const PlannedAnswer first = Attempt(request, cluster.prefill()[0], decode).Run();
  ExpectExact(request, first, cluster);
  request.prompt.insert(request.prompt.end(), first.tokens.begin(), first.tokens.end());
  request.prompt.insert(request.prompt.end(), {5, 6, 7, 8, 9});
  const WorkerProcess& reader = cluster.prefill()[1];
  const auto blocks = static_cast<uint32_t>(320 + first.tokens.size() - 1) / 16;
  const PlannedAnswer next =
      Attempt(request, reader, decode).Run(PeerOf(decode, reader, FullBlocks(request)));
  ExpectExact(request, next, cluster);
  ExpectRead(next, blocks);  // the prompt's and the answer's full blocks
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// Only what is missing travels, behind what the reader has; what the owner has of it is taken.
TEST_F(PeerTest, WhatIsHereIsNotAskedForAndWhatIsNotThereIsComputed) {
  Cluster cluster({.prefill = 2});
  const WorkerProcess& owner = cluster.prefill()[0];
  const WorkerProcess& reader = cluster.prefill()[1];
  const WorkerProcess& decode = cluster.decode()[0];
  const TestRequest request = Prompt(640, 8);
  TestRequest part = request;
  part.prompt.resize(330);
  Warm(part, owner, decode);
  part.prompt.resize(170);
  Warm(part, reader, decode);
  const PlannedAnswer answer =
      Attempt(request, reader, decode).Run(PeerOf(owner, reader, FullBlocks(request)));
  ExpectExact(request, answer, cluster);
  ExpectRead(answer, 10);  // blocks 10 to 19
  EXPECT_EQ(answer.first.cached_tokens(), 320u);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

TEST_F(PeerTest, WhatTheOwnerHasNotIsComputed) {
  Cluster cluster({.prefill = 2});
  const WorkerProcess& owner = cluster.prefill()[0];
  const WorkerProcess& reader = cluster.prefill()[1];
  const WorkerProcess& decode = cluster.decode()[0];
  const TestRequest request = Prompt(300, 9);
  Warm(request, owner, decode);
  ASSERT_TRUE(cluster.AllBlocksFree(seconds(30)));
  grpc::ClientContext context;
  v1::KvFlushed flushed;
  ASSERT_TRUE(StubOf<v1::KvAdmin>(owner)->Flush(&context, {}, &flushed).ok());
  ASSERT_GE(flushed.blocks(), FullBlocks(request));
  const PlannedAnswer answer =
      Attempt(request, reader, decode).Run(PeerOf(owner, reader, FullBlocks(request)));
  ExpectExact(request, answer, cluster);
  EXPECT_EQ(answer.first.peer().outcome(), v1::PeerRead::MISSING);
  EXPECT_EQ(answer.first.cached_tokens(), 0u);
}

TEST_F(PeerTest, AWorkerThatServesNobodyRefuses) {
  Cluster cluster({.prefill = 2, .first_prefill_flags = {"--peer_reads=0"}});
  const WorkerProcess& owner = cluster.prefill()[0];
  const WorkerProcess& reader = cluster.prefill()[1];
  const WorkerProcess& decode = cluster.decode()[0];
  const TestRequest request = Prompt(300, 10);
  Warm(request, owner, decode);
  const PlannedAnswer answer =
      Attempt(request, reader, decode).Run(PeerOf(owner, reader, FullBlocks(request)));
  ExpectExact(request, answer, cluster);
  EXPECT_EQ(answer.first.peer().outcome(), v1::PeerRead::REFUSED);
}

TEST_F(PeerTest, APrefixIsReadFromHostMemory) {
  Cluster cluster({.prefill = 2, .first_prefill_flags = TinyPool({"--dram_memory=32MiB"})});
  const WorkerProcess& owner = cluster.prefill()[0];
  const WorkerProcess& reader = cluster.prefill()[1];
  const WorkerProcess& decode = cluster.decode()[0];
  const TestRequest request = Prompt(200, 11);
  ExpectExact(request, Attempt(request, owner, decode).Run(), cluster);
  PushOut(cluster, owner, decode);
  ASSERT_TRUE(WaitUntil([&] { return TierOf(owner, v1::DRAM).blocks() >= FullBlocks(request); },
                        seconds(30)));
  const uint64_t before = TierOf(owner, v1::DRAM).restores();
  const PlannedAnswer answer =
      Attempt(request, reader, decode).Run(PeerOf(owner, reader, FullBlocks(request)));
  ExpectExact(request, answer, cluster);
  ExpectRead(answer, FullBlocks(request));
  EXPECT_GT(TierOf(owner, v1::DRAM).restores(), before);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// A worker whose cache is in its NVMe tier alone: it was stopped and started again.
class NvmePeerTest : public PeerTest {
 protected:
  NvmePeerTest()
      : directory_(folder_.path() + "/kv"),
        cluster_(
            {.prefill = 2,
             .first_prefill_flags = TinyPool({"--dram_memory=32MiB", "--nvme_dir=" + directory_,
                                              "--nvme_size=64MiB", "--nvme_min_uses=1"})}),
        request_(Prompt(200, 13)) {}

  // `meanwhile` is done to the directory while nobody has it open.
  void RestartWarm(const std::function<void()>& meanwhile = [] {}) {
    ExpectExact(request_, Attempt(request_, owner(), decode()).Run(), cluster_);
    PushOut(cluster_, owner(), decode());
    ASSERT_TRUE(WaitUntil(
        [&] { return TierOf(owner(), v1::DRAM).blocks() >= FullBlocks(request_); }, seconds(30)));
    owner().process.Signal(SIGTERM);
    ASSERT_EQ(owner().process.Wait(seconds(30)), 0) << cluster_.Logs();
    meanwhile();
    cluster_.Restart(owner());
    ASSERT_TRUE(WaitUntil(
        [&] { return TierOf(owner(), v1::NVME).blocks() >= FullBlocks(request_); }, seconds(30)))
        << cluster_.Logs();
  }

  PlannedAnswer Read() {
    return Attempt(request_, reader(), decode())
        .Run(PeerOf(owner(), reader(), FullBlocks(request_)));
  }

  WorkerProcess& owner() { return cluster_.prefill()[0]; }
  WorkerProcess& reader() { return cluster_.prefill()[1]; }
  WorkerProcess& decode() { return cluster_.decode()[0]; }

  const std::string directory_;
  Cluster cluster_;
  const TestRequest request_;
};

TEST_F(NvmePeerTest, APrefixIsReadFromNvme) {
  RestartWarm();
  const PlannedAnswer answer = Read();
  ExpectExact(request_, answer, cluster_);
  ExpectRead(answer, FullBlocks(request_));
  EXPECT_GE(TierOf(owner(), v1::NVME).restores(), FullBlocks(request_));
  EXPECT_TRUE(cluster_.AllBlocksFree(seconds(30))) << cluster_.Logs();
}

// Payloads are the greatest part of a segment: a bit in the middle of each page of it.
TEST_F(NvmePeerTest, ADamagedExtentIsNeverServed) {
  RestartWarm([&] {
    int files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      if (!entry.is_regular_file() || entry.file_size() < (64 << 10)) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      // The first and the last pages are headers and the footer, which would lose all.
      for (uintmax_t at = 3 * 40960 + 777; at + 65536 < entry.file_size(); at += 40960) {
        file.seekg(static_cast<std::streamoff>(at));
        const char flipped = static_cast<char>(file.get() ^ 4);
        file.seekp(static_cast<std::streamoff>(at));
        file.put(flipped);
      }
      ++files;
    }
    ASSERT_GT(files, 0);
  });
  const PlannedAnswer answer = Read();
  ExpectExact(request_, answer, cluster_);
  EXPECT_LT(answer.first.peer().blocks(), FullBlocks(request_));
  EXPECT_GT(StatsOf(owner()).nvme().corrupt(), 0u);
  EXPECT_TRUE(cluster_.AllBlocksFree(seconds(30))) << cluster_.Logs();
}

// A fault of a prefix's owner, and the step of the read at which it happens.
class BrokenPeerTest : public PeerTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(BrokenPeerTest, TheReaderComputesAndNothingIsLeftBehind) {
  const std::string fault = GetParam();
  const bool stops = fault.ends_with("stop");
  Cluster cluster({.prefill = 2, .first_prefill_flags = {"--fault=" + fault}});
  WorkerProcess& owner = cluster.prefill()[0];
  const WorkerProcess& reader = cluster.prefill()[1];
  const WorkerProcess& decode = cluster.decode()[0];
  const TestRequest request = Prompt(600, 15);
  Warm(request, owner, decode);
  // Who is stopped is waited for as long as the plan says; who is dead is not.
  const PlannedAnswer answer =
      Attempt(request, reader, decode)
          .Run(PeerOf(owner, reader, FullBlocks(request), stops ? 1500 : kPatienceMs));
  ExpectExact(request, answer, cluster);
  EXPECT_EQ(answer.first.peer().outcome(), stops ? v1::PeerRead::LATE : v1::PeerRead::LOST)
      << cluster.Logs();
  EXPECT_EQ(answer.first.cached_tokens(), 0u);
  EXPECT_LT(answer.first.peer().ms(), 20'000);
  if (!stops) {
    EXPECT_EQ(owner.process.Wait(seconds(30)), 128 + SIGKILL);
    EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
    return;
  }
  // On a busy machine the plan's time may pass first, and the owner stop only now.
  const auto goes_on_and_is_whole = [&] {
    owner.process.Signal(SIGCONT);
    return cluster.AllBlocksFree(seconds(2));
  };
  EXPECT_TRUE(WaitUntil(goes_on_and_is_whole, seconds(60))) << cluster.Logs();
  // The owner is as good as before.
  ExpectExact(request, Attempt(request, owner, decode).Run(), cluster);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

INSTANTIATE_TEST_SUITE_P(Faults, BrokenPeerTest,
                         ::testing::Values("found:kill", "found:stop", "credited:kill",
                                           "credited:stop", "streaming:kill", "streaming:stop",
                                           "landed:kill"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

TEST_F(PeerTest, AClientThatLeavesMeanwhileLeavesNothing) {
  Cluster cluster({.prefill = 2, .first_prefill_flags = {"--fault=streaming:stop"}});
  WorkerProcess& owner = cluster.prefill()[0];
  const WorkerProcess& reader = cluster.prefill()[1];
  const WorkerProcess& decode = cluster.decode()[0];
  const TestRequest request = Prompt(600, 16);
  Warm(request, owner, decode);
  Attempt attempt(request, reader, decode);
  auto answer = std::async(std::launch::async,
                           [&] { return attempt.Run(PeerOf(owner, reader, FullBlocks(request))); });
  // The owner does not answer any more: the handoff is under way.
  ASSERT_TRUE(WaitUntil([&] { return owner.process.stopped(); }, seconds(30)));
  attempt.Cancel();
  EXPECT_EQ(answer.get().prefill.error_code(), grpc::StatusCode::CANCELLED);
  owner.process.Signal(SIGCONT);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// More than the workers' pools hold, from and to each other, all at once.
TEST_F(PeerTest, ManyReadsUnderPressureAreExact) {
  // A prompt that waits for others leaves room for the longest one: 128 of these 179 blocks.
  Cluster cluster({.prefill = 2, .prefill_flags = {"--kv_memory=7MiB", "--cache_policy=lru"}});
  const WorkerProcess& decode = cluster.decode()[0];
  std::vector<TestRequest> requests;
  for (uint32_t i = 0; i < 12; ++i) requests.push_back(Prompt(100 + i * 37 % 100, 20 + i));
  for (size_t i = 0; i < requests.size(); ++i) {
    WarmAndLetGo(requests[i], cluster.prefill()[i % 2], decode);
  }
  std::vector<PlannedAnswer> answers(requests.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < requests.size(); ++i) {
    clients.emplace_back([&, i] {
      const WorkerProcess& owner = cluster.prefill()[i % 2];
      const WorkerProcess& reader = cluster.prefill()[1 - i % 2];
      answers[i] =
          Attempt(requests[i], reader, decode).Run(PeerOf(owner, reader, FullBlocks(requests[i])));
    });
  }
  for (std::thread& client : clients) client.join();
  int read = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectExact(requests[i], answers[i], cluster);
    read += answers[i].first.peer().outcome() == v1::PeerRead::READ ? 1 : 0;
  }
  EXPECT_GT(read, 0);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(30))) << cluster.Logs();
}

// Not a test: what it is worth. docs/performance.md says how it is run.
TEST_F(PeerTest, DISABLED_TimeToTheFirstToken) {
  Cluster cluster({.prefill = 2});
  const WorkerProcess& owner = cluster.prefill()[0];
  const WorkerProcess& reader = cluster.prefill()[1];
  const WorkerProcess& decode = cluster.decode()[0];
  const auto milliseconds_of = [&](const TestRequest& request, const WorkerProcess& worker,
                                   const std::optional<v1::PeerPrefix>& peer) {
    const auto start = std::chrono::steady_clock::now();
    const PlannedAnswer answer = Attempt(request, worker, decode).Prefill(peer);
    EXPECT_TRUE(answer.prefill.ok());
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  };
  for (const size_t tokens : {500, 1000, 2000}) {
    std::vector<double> computed, fetched;
    for (uint32_t i = 0; i < 9; ++i) {
      TestRequest request = Prompt(tokens, 1000 * static_cast<uint32_t>(tokens) + i);
      request.tokens_max = 1;  // only the first token; nothing is handed over
      computed.push_back(milliseconds_of(request, owner, std::nullopt));
      fetched.push_back(
          milliseconds_of(request, reader, PeerOf(owner, reader, FullBlocks(request))));
    }
    std::sort(computed.begin(), computed.end());
    std::sort(fetched.begin(), fetched.end());
    std::printf("%zu tokens: first token after %.1f ms computed, %.1f ms fetched (medians of 9)\n",
                tokens, computed[4], fetched[4]);
  }
}

}  // namespace
}  // namespace penstock
