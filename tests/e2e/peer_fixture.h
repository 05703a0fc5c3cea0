#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "lab/fake/temp_folder.h"
#include "proto/kv_admin.grpc.pb.h"
#include "proto/worker.grpc.pb.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/decode_session.h"
#include "tests/e2e/cluster/kv_stats.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/support/environment.h"

namespace penstock {

inline constexpr double kPatienceMs =
    60'000;  // where the peer is to be waited for, however slow it is

template <class Service>
auto StubOf(const WorkerProcess& worker) {
  return Service::NewStub(grpc::CreateChannel(worker.endpoint, grpc::InsecureChannelCredentials()));
}

inline v1::SamplingSpec SpecOf(const TestRequest& request) {
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
inline TestRequest Prompt(size_t tokens, uint32_t vocab, uint32_t seed) {
  std::mt19937 random(seed);
  TestRequest request;
  for (size_t i = 0; i < tokens; ++i) request.prompt.push_back(random() % vocab);
  request.sampling.temperature = seed % 2 == 0 ? 0.0f : 0.8f;
  request.sampling.seed = seed;
  request.tokens_max = 8;
  return request;
}

inline uint32_t FullBlocks(const TestRequest& request) {
  return static_cast<uint32_t>((request.prompt.size() - 1) / 16);
}

inline v1::PeerPrefix PeerOf(const WorkerProcess& owner, const WorkerProcess& reader,
                             uint32_t blocks, double patience_ms = kPatienceMs) {
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

  // As a router whose answer ends with its first token: it then ends the decode session.
  PlannedAnswer FirstTokenOnly() {
    auto decode = std::async(std::launch::async, [&] {
      return RunDecodeSession(*decode_, &decode_context_, DecodeAsked());
    });
    PlannedAnswer answer = Prefill();
    decode_context_.TryCancel();
    decode.wait();
    return answer;
  }

  PlannedAnswer Run(const std::optional<v1::PeerPrefix>& peer = std::nullopt) {
    const v1::DecodeRequest asked = DecodeAsked();
    auto prefill = std::async(std::launch::async, [&] { return Prefill(peer); });
    const DecodedSession decoded = RunDecodeSession(*decode_, &decode_context_, asked);
    PlannedAnswer answer = prefill.get();
    answer.decode = decoded.status;
    for (const v1::TokenOut& token : answer.first.tokens()) answer.tokens.push_back(token.token());
    for (const v1::TokenOut& token : decoded.tokens) answer.tokens.push_back(token.token());
    return answer;
  }

 private:
  v1::DecodeRequest DecodeAsked() const {
    v1::DecodeRequest asked;
    *asked.mutable_key() = asked_.key();
    *asked.mutable_tokens() = asked_.tokens();
    asked.set_prompt_tokens(asked_.prompt_tokens());
    *asked.mutable_sampling() = asked_.sampling();
    return asked;
  }

  const std::unique_ptr<v1::PrefillWorker::Stub> prefill_;
  const std::unique_ptr<v1::DecodeWorker::Stub> decode_;
  grpc::ClientContext prefill_context_, decode_context_;
  v1::PrefillRequest asked_;
};

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

  // Computed and cached there, and nothing handed over: the handoff finds no decode session, so its
  // blocks are held until the offer's time has passed.
  void Warm(const TestRequest& request, const WorkerProcess& worker, const WorkerProcess& decode) {
    TestRequest first_only = request;
    first_only.tokens_max = 1;
    const PlannedAnswer answer = Attempt(first_only, worker, decode).Prefill();
    ASSERT_TRUE(answer.prefill.ok()) << answer.prefill.error_message();
  }
  // The same, and its blocks are free at once.
  void WarmAndLetGo(const TestRequest& request, const WorkerProcess& worker,
                    const WorkerProcess& decode) {
    TestRequest first_only = request;
    first_only.tokens_max = 1;
    const PlannedAnswer answer = Attempt(first_only, worker, decode).FirstTokenOnly();
    ASSERT_TRUE(answer.prefill.ok()) << answer.prefill.error_message();
  }

  // Moves the content of a tiny pool to host memory.
  void PushOut(Cluster& cluster, const WorkerProcess& worker, const WorkerProcess& decode) {
    for (const uint32_t seed : {101u, 102u}) {
      const TestRequest other = Prompt(200, seed);
      ExpectExact(other, Attempt(other, worker, decode).Run(), cluster);
    }
  }

  TempFolder folder_;
  LocalGenerator local_{ModelFolder()};
};

}  // namespace penstock
