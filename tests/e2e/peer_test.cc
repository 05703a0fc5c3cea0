// A prefix that one worker has and another one needs is read from the first one's store, from
// whatever tier, instead of being computed: the same tokens, and whatever goes wrong on the way,
// still the same tokens and nothing left behind. The plan is forced: the test calls the workers as
// a router would.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <thread>

#include "proto/kv_admin.grpc.pb.h"
#include "proto/worker.grpc.pb.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/decode_session.h"
#include "tests/e2e/local_generator.h"
#include "tests/e2e/requests.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kPatienceMs = 60'000;  // where the peer is to be waited for, however slow it is

template <class Service>
auto StubOf(const WorkerProcess& worker) {
  return Service::NewStub(grpc::CreateChannel(worker.endpoint, grpc::InsecureChannelCredentials()));
}

v1::SamplingSpec SpecOf(const TestRequest& request) {
  v1::SamplingSpec spec;
  spec.set_temperature(request.sampling.temperature);
  spec.set_top_p(request.sampling.top_p);
  spec.set_top_k(static_cast<uint32_t>(request.sampling.top_k));
  spec.set_min_p(request.sampling.min_p);
  spec.set_frequency_penalty(request.sampling.frequency_penalty);
  spec.set_presence_penalty(request.sampling.presence_penalty);
  spec.set_repetition_penalty(request.sampling.repetition_penalty);
  spec.set_seed(request.sampling.seed);
  spec.set_max_tokens(static_cast<uint32_t>(request.tokens_max));
  spec.set_choices(1);
  return spec;
}

// A prompt of exactly `tokens` tokens.
TestRequest Prompt(size_t tokens, uint32_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  TestRequest request;
  for (size_t i = 0; i < tokens; ++i) request.prompt.push_back(random() % vocab);
  request.sampling.temperature = seed % 2 == 0 ? 0.0f : 0.8f;
  request.sampling.seed = seed;
  request.tokens_max = 8;
  return request;
}

uint32_t FullBlocks(const TestRequest& request) {
  return static_cast<uint32_t>((request.prompt.size() - 1) / 16);
}

v1::PeerPrefix PeerOf(const WorkerProcess& owner, const WorkerProcess& reader, uint32_t blocks,
                      double patience_ms = kPatienceMs) {
  v1::PeerPrefix peer;
  peer.set_endpoint(owner.endpoint);
  peer.set_own_endpoint(reader.endpoint);
  peer.set_blocks(blocks);
  peer.set_patience_ms(patience_ms);
  return peer;
}

struct PlannedAnswer {
  grpc::Status prefill, decode;
  v1::FirstTokens first;
  std::vector<uint32_t> tokens;
};

// One attempt as the router makes it, on workers that the test chooses.
class Attempt {
 public:
  Attempt(const TestRequest& request, const WorkerProcess& prefill, const WorkerProcess& decode)
      : prefill_(StubOf<v1::PrefillWorker>(prefill)), decode_(StubOf<v1::DecodeWorker>(decode)) {
    static std::atomic<uint64_t> sessions{1};
    asked_.mutable_key()->set_session(sessions++);
    asked_.mutable_key()->set_nonce(7);
    asked_.mutable_tokens()->Add(request.prompt.begin(), request.prompt.end());
    asked_.set_prompt_tokens(static_cast<uint32_t>(request.prompt.size()));
    *asked_.mutable_sampling() = SpecOf(request);
    asked_.set_decode_endpoint(decode.endpoint);
    const auto deadline = std::chrono::system_clock::now() + std::chrono::minutes(2);
    prefill_context_.set_deadline(deadline);
    decode_context_.set_deadline(deadline);
  }

  void Cancel() {
    prefill_context_.TryCancel();
    decode_context_.TryCancel();
  }

  // Only what the prefill worker does.
  PlannedAnswer Prefill(const std::optional<v1::PeerPrefix>& peer = std::nullopt) {
    if (peer) *asked_.mutable_peer() = *peer;
    PlannedAnswer answer;
    const auto stream = prefill_->Prefill(&prefill_context_, asked_);
    v1::PrefillEvent event;
    while (stream->Read(&event)) {
      if (event.has_first()) answer.first = event.first();
    }
    answer.prefill = stream->Finish();
    return answer;
  }

  PlannedAnswer Run(const std::optional<v1::PeerPrefix>& peer = std::nullopt) {
    v1::DecodeRequest asked;
    *asked.mutable_key() = asked_.key();
    *asked.mutable_tokens() = asked_.tokens();
    asked.set_prompt_tokens(asked_.prompt_tokens());
    *asked.mutable_sampling() = asked_.sampling();
    auto prefill = std::async(std::launch::async, [&] { return Prefill(peer); });
    const DecodedSession decoded = RunDecodeSession(*decode_, &decode_context_, asked);
    PlannedAnswer answer = prefill.get();
    answer.decode = decoded.status;
    for (const v1::TokenOut& token : answer.first.tokens()) answer.tokens.push_back(token.token());
    for (const v1::TokenOut& token : decoded.tokens) answer.tokens.push_back(token.token());
    return answer;
  }

 private:
  const std::unique_ptr<v1::PrefillWorker::Stub> prefill_;
  const std::unique_ptr<v1::DecodeWorker::Stub> decode_;
  grpc::ClientContext prefill_context_, decode_context_;
  v1::PrefillRequest asked_;
};

v1::KvTierStats TierOf(const WorkerProcess& worker, v1::KvTier tier) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  v1::KvStats all;
  const grpc::Status status = StubOf<v1::KvAdmin>(worker)->Stats(&context, {}, &all);
  EXPECT_TRUE(status.ok()) << status.error_message();
  for (const v1::KvTierStats& stats : all.tiers()) {
    if (stats.tier() == tier) return stats;
  }
  return {};
}

class PeerTest : public ::testing::Test {
 protected:
  TestRequest Prompt(size_t tokens, uint32_t seed) {
    return penstock::Prompt(tokens, local_.vocab(), seed);
  }

  void ExpectExact(const TestRequest& request, const PlannedAnswer& answer, Cluster& cluster) {
    EXPECT_TRUE(answer.prefill.ok()) << answer.prefill.error_message() << "\n" << cluster.Logs();
    EXPECT_TRUE(answer.decode.ok()) << answer.decode.error_message();
    EXPECT_EQ(answer.tokens, local_.Generate(request.prompt, request.sampling, request.tokens_max));
  }

  static void ExpectRead(const PlannedAnswer& answer, uint32_t blocks) {
    EXPECT_EQ(answer.first.peer().outcome(), v1::PeerRead::READ)
        << answer.first.peer().ShortDebugString();
    EXPECT_EQ(answer.first.peer().blocks(), blocks);
  }

  // Computed and cached there, and nothing handed over: the handoff finds no decode session.
  void Warm(const TestRequest& request, const WorkerProcess& worker, const WorkerProcess& decode) {
    TestRequest first_only = request;
    first_only.tokens_max = 1;
    const PlannedAnswer answer = Attempt(first_only, worker, decode).Prefill();
    ASSERT_TRUE(answer.prefill.ok()) << answer.prefill.error_message();
  }

  // What a tiny pool has is in host memory after this.
  void PushOut(Cluster& cluster, const WorkerProcess& worker, const WorkerProcess& decode) {
    for (const uint32_t seed : {101u, 102u}) {
      const TestRequest other = Prompt(200, seed);
      ExpectExact(other, Attempt(other, worker, decode).Run(), cluster);
    }
  }

  TemporaryFolder folder_;
  LocalGenerator local_{ModelFolder()};
};

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
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
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
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
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
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
}

TEST_F(PeerTest, WhatTheOwnerHasNotIsComputed) {
  Cluster cluster({.prefill = 2});
  const WorkerProcess& owner = cluster.prefill()[0];
  const WorkerProcess& reader = cluster.prefill()[1];
  const WorkerProcess& decode = cluster.decode()[0];
  const TestRequest request = Prompt(300, 9);
  Warm(request, owner, decode);
  ASSERT_TRUE(cluster.AllBlocksFree(seconds(5)));
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
  ASSERT_TRUE(Eventually(seconds(10),
                         [&] { return TierOf(owner, v1::DRAM).blocks() >= FullBlocks(request); }));
  const uint64_t before = TierOf(owner, v1::DRAM).restores();
  const PlannedAnswer answer =
      Attempt(request, reader, decode).Run(PeerOf(owner, reader, FullBlocks(request)));
  ExpectExact(request, answer, cluster);
  ExpectRead(answer, FullBlocks(request));
  EXPECT_GT(TierOf(owner, v1::DRAM).restores(), before);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
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
    ASSERT_TRUE(Eventually(
        seconds(10), [&] { return TierOf(owner(), v1::DRAM).blocks() >= FullBlocks(request_); }));
    owner().process.Signal(SIGTERM);
    ASSERT_EQ(owner().process.Wait(seconds(30)), 0) << cluster_.Logs();
    meanwhile();
    cluster_.Restart(owner());
    ASSERT_TRUE(Eventually(seconds(20), [&] {
      return TierOf(owner(), v1::NVME).blocks() >= FullBlocks(request_);
    })) << cluster_.Logs();
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
  EXPECT_TRUE(cluster_.AllBlocksFree(seconds(5))) << cluster_.Logs();
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
  grpc::ClientContext context;
  v1::KvStats stats;
  ASSERT_TRUE(StubOf<v1::KvAdmin>(owner())->Stats(&context, {}, &stats).ok());
  EXPECT_GT(stats.nvme().corrupt(), 0u);
  EXPECT_TRUE(cluster_.AllBlocksFree(seconds(5))) << cluster_.Logs();
}

// What happens to the owner of a prefix on the way, and at which step.
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
  if (stops) {
    owner.process.Signal(SIGCONT);
  } else {
    EXPECT_EQ(owner.process.Wait(seconds(10)), 128 + SIGKILL);
  }
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
  if (!stops) return;
  // The owner is as good as before.
  ExpectExact(request, Attempt(request, owner, decode).Run(), cluster);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
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
  ASSERT_TRUE(Eventually(seconds(20), [&] { return !owner.State(milliseconds(300)); }));
  attempt.Cancel();
  EXPECT_EQ(answer.get().prefill.error_code(), grpc::StatusCode::CANCELLED);
  owner.process.Signal(SIGCONT);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
}

// More than the workers' pools hold, from and to each other, all at once.
TEST_F(PeerTest, ManyReadsUnderPressureAreExact) {
  // A prompt that waits for others leaves room for the longest one: 128 of these 179 blocks.
  Cluster cluster({.prefill = 2, .prefill_flags = {"--kv_memory=7MiB", "--cache_policy=lru"}});
  const WorkerProcess& decode = cluster.decode()[0];
  std::vector<TestRequest> requests;
  for (uint32_t i = 0; i < 12; ++i) requests.push_back(Prompt(100 + i * 37 % 100, 20 + i));
  for (size_t i = 0; i < requests.size(); ++i) {
    Warm(requests[i], cluster.prefill()[i % 2], decode);
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
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
}

// ---------------------------------------------------------------- planned by the router

class PlannedPeerTest : public PeerTest {
 protected:
  static TestAnswer AskRouter(Cluster& cluster, const TestRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    v1::GenerateRequest proto = ToProto(request);
    proto.mutable_output()->set_explain(true);
    return Ask(cluster.client(), proto, context);
  }
  void ExpectAnswer(Cluster& cluster, const TestRequest& request, const TestAnswer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0],
              local_.Generate(request.prompt, request.sampling, request.tokens_max));
  }
  // Another process in its place, without a cache; serves when this returns.
  void Renew(Cluster& cluster, WorkerProcess& worker) {
    worker.process.Signal(SIGKILL);
    ASSERT_TRUE(worker.process.Wait(seconds(10)).has_value());
    cluster.Restart(worker);
    const TestRequest other = Prompt(20, 99);
    ASSERT_TRUE(Eventually(seconds(30), [&] { return AskRouter(cluster, other).status.ok(); }));
  }
};

// The decode worker has what it had: the router knows, and explains what it makes of it.
TEST_F(PlannedPeerTest, APrefillWorkerThatIsStartedAnewReadsFromTheDecodeWorker) {
  Cluster cluster({.router_flags = {"--peer_patience_ms=60000"}});
  const TestRequest request = Prompt(600, 40);
  ExpectAnswer(cluster, request, AskRouter(cluster, request));
  Renew(cluster, cluster.prefill()[0]);
  const TestAnswer answer = AskRouter(cluster, request);
  ExpectAnswer(cluster, request, answer);
  EXPECT_EQ(answer.usage.cached_tokens(), 592u) << cluster.Logs();
  const v1::ScoredPair& chosen = answer.explanation.candidates(0);
  EXPECT_EQ(chosen.fetched_tokens(), 592u);
  EXPECT_EQ(chosen.source_worker(), cluster.decode()[0].State()->worker_id());
  EXPECT_GT(chosen.fetch_ms(), 0);
  // Once it is there, nothing is read again.
  const TestAnswer again = AskRouter(cluster, request);
  ExpectAnswer(cluster, request, again);
  EXPECT_EQ(again.usage.cached_tokens(), 592u);
  EXPECT_EQ(again.explanation.candidates(0).fetched_tokens(), 0u);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
}

TEST_F(PlannedPeerTest, WhereThatIsTurnedOffThePromptIsComputed) {
  Cluster cluster({.router_flags = {"--peer_reads=off"}});
  const TestRequest request = Prompt(600, 41);
  ExpectAnswer(cluster, request, AskRouter(cluster, request));
  Renew(cluster, cluster.prefill()[0]);
  const TestAnswer answer = AskRouter(cluster, request);
  ExpectAnswer(cluster, request, answer);
  EXPECT_EQ(answer.usage.cached_tokens(), 0u);
}

// The next turn: the prompt was computed by the prefill worker, its answer by the decode worker,
// which tells the router of it a moment after the client has it.
TEST_F(PlannedPeerTest, TheNextTurnReadsTheAnswerOfTheLast) {
  Cluster cluster({.router_flags = {"--peer_patience_ms=60000"}});
  bool read = false;
  for (uint32_t conversation = 0; conversation < 10 && !read; ++conversation) {
    TestRequest request = Prompt(64, 42 + conversation);
    request.tokens_max = 500;
    const TestAnswer first = AskRouter(cluster, request);
    ExpectAnswer(cluster, request, first);
    ASSERT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
    TestRequest next = request;
    next.prompt.insert(next.prompt.end(), first.tokens[0].begin(), first.tokens[0].end());
    next.prompt.insert(next.prompt.end(), {5, 6, 7, 8, 9});
    next.tokens_max = 8;
    const TestAnswer second = AskRouter(cluster, next);
    ExpectAnswer(cluster, next, second);
    read = second.usage.cached_tokens() == (64 + first.tokens[0].size() - 1) / 16 * 16;
  }
  EXPECT_TRUE(read);
  EXPECT_TRUE(cluster.AllBlocksFree(seconds(5))) << cluster.Logs();
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
