// Pages of few bits, with a span and centred keys, on emulated GPUs, one or several a worker, and
// decode workers that die or leave. Every token is that of one process on as many GPUs.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/kv_stats.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/models/expert_model.h"
#include "tests/e2e/peer_fixture.h"
#include "tests/e2e/policy_requests.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

const std::string kFormat = "k3v3c+64";

std::vector<std::string> OnGpu(const std::vector<std::string>& more) {
  std::vector<std::string> flags = {"--device=cuda:0", "--kv_format=" + kFormat};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}
const std::string kMemory = "--gpu_memory_utilization=0.036";

class GpuSpanTest : public testing::Test {
 protected:
  // A greedy answer of exactly `tokens_max` tokens.
  TestRequest RequestOf(int prompt, uint32_t seed, int tokens_max) {
    TestRequest request = MakeRequest(prompt, local_.vocab(), seed, tokens_max);
    request.sampling.temperature = 0;
    request.sampling.stop_token_ids.clear();
    return request;
  }
  static TestAnswer AskOne(Cluster& cluster, const TestRequest& request,
                           const std::function<void(const TestAnswer&)>& on_tokens = nullptr) {
    Deadline context(std::chrono::minutes(4));
    return Ask(cluster.client(), ToProto(request), context, on_tokens);
  }
  void Expect(Cluster& cluster, const TestRequest& request, const TestAnswer& answer) {
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0],
              local_.Generate(request.prompt, request.sampling, request.tokens_max));
  }

 private:
  LocalGenerator local_{ModelHost::Options{.model = ModelFolder(),
                                           .kv_format = kFormat,
                                           .step_tokens = 300,
                                           .device = "cuda:0",
                                           .gpu_memory_utilization = 0.036}};
};

// The parameter is the signal that the decode worker gets in the middle of the answer: it dies, or
// it hands its sequence over.
class GpuSpanFailoverTest : public GpuSpanTest, public testing::WithParamInterface<int> {};

TEST_P(GpuSpanFailoverTest, TheAnswerIsTheUndisturbedOne) {
  Cluster cluster({.decode = 2,
                   .prefill_flags = OnGpu({kMemory, "--random_chunks", "--chunk_tokens=64"}),
                   .decode_flags = OnGpu({kMemory, "--wire_codec=raw"}),
                   .worker_suffix = "-emulated"});
  const TestRequest request = RequestOf(150, 61, 100);
  const TestAnswer answer =
      AskDisturbed(cluster, {.signal = GetParam(), .tokens = 50},
                   [&](const auto& on_tokens) { return AskOne(cluster, request, on_tokens); });
  Expect(cluster, request, answer);
  if (GetParam() == SIGTERM) {
    EXPECT_EQ(answer.usage.recomputed_tokens(), 0u) << cluster.Logs();
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, GpuSpanFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

// Workers with several GPUs: each has some heads of both copies of a layer.
struct Spread {
  const char* format;
  int prefill = 2;  // GPUs of the prefill worker
  int decode = 2;
};
void PrintTo(const Spread& spread, std::ostream* out) {
  *out << spread.format << " from " << spread.prefill << " to " << spread.decode;
}

class SpreadRig {
 public:
  explicit SpreadRig(const Spread& spread, const std::string& model = ModelFolder())
      : spread_(spread),
        model_(model),
        local_(OptionsOf(spread.prefill, 0), OptionsOf(spread.decode, spread.prefill)) {}

  std::vector<std::string> Flags(int gpus, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> flags = {
        "--device=cuda:0", kMemory, std::string("--kv_format=") + spread_.format,
        fmt::format("--tensor_parallel={}", gpus), fmt::format("--nccl_library={}", FAKE_NCCL)};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  Cluster::Options ClusterOf(const std::vector<std::string>& prefill = {},
                             const std::vector<std::string>& decode = {}) const {
    std::vector<std::string> chunks = {"--random_chunks", "--chunk_tokens=64"};
    chunks.insert(chunks.end(), prefill.begin(), prefill.end());
    return {.model = model_,
            .prefill_flags = Flags(spread_.prefill, chunks),
            .decode_flags = Flags(spread_.decode, decode),
            .worker_suffix = "-emulated"};
  }
  // Sampled, unless `greedy`.
  TestRequest RequestOf(int prompt, uint32_t seed, int tokens_max, bool greedy) const {
    TestRequest request = MakeRequest(prompt, local_.vocab(), seed, tokens_max);
    if (greedy) request.sampling.temperature = 0;
    request.sampling.stop_token_ids.clear();
    return request;
  }
  TestAnswer Expect(Cluster& cluster, const TestRequest& request, const TestAnswer& answer) {
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    if (!answer.status.ok()) return answer;
    EXPECT_EQ(answer.tokens[0], Expected(request));
    return answer;
  }
  TestAnswer Check(Cluster& cluster, const TestRequest& request) {
    return Expect(cluster, request, AskOne(cluster, request));
  }
  const std::vector<uint32_t>& Expected(const TestRequest& request) {
    std::vector<uint32_t>& wanted = wanted_[request.prompt];
    if (wanted.empty()) {
      wanted = local_.Generate(request.prompt, request.sampling, request.tokens_max);
    }
    return wanted;
  }
  int span() const { return KvPageFormatOf(spread_.format)->span; }
  static TestAnswer AskOne(Cluster& cluster, const TestRequest& request,
                           const std::function<void(const TestAnswer&)>& on_tokens = nullptr) {
    Deadline context(std::chrono::minutes(4));
    return Ask(cluster.client(), ToProto(request), context, on_tokens);
  }

 private:
  ModelHost::Options OptionsOf(int gpus, int first) const {
    return {.model = model_,
            .kv_format = spread_.format,
            .step_tokens = 200,
            .device = fmt::format("cuda:{}", first),
            .gpu_memory_utilization = 0.036,
            .tensor_parallel = gpus,
            .nccl_library = FAKE_NCCL};
  }

  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "8"};
  const Spread spread_;
  const std::string model_;
  LocalGenerator local_;
  std::map<std::vector<uint32_t>, std::vector<uint32_t>> wanted_;  // answers by prompt
};

// A greedy and a sampled answer, of which the second goes across the end of a span, then both with
// their prompts cached.
void CheckDegrees(SpreadRig& rig) {
  Cluster cluster(rig.ClusterOf());
  const int span = rig.span() == 0 ? 32 : rig.span();
  for (const bool greedy : {true, false}) {
    const TestRequest request =
        rig.RequestOf(span + (greedy ? 12 : -3), greedy ? 71 : 72, 6, greedy);
    for (const bool cached : {false, true}) {
      const TestAnswer answer = rig.Check(cluster, request);
      EXPECT_GT(answer.timing.kv_bytes_moved(), 0u);
      EXPECT_EQ(answer.usage.cached_tokens() > 0, cached);
    }
  }
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

class SpreadTest : public testing::TestWithParam<Spread> {};
TEST_P(SpreadTest, AnswersAreThoseOfTheirDegrees) {
  SpreadRig rig(GetParam());
  CheckDegrees(rig);
}

INSTANTIATE_TEST_SUITE_P(Formats, SpreadTest,
                         testing::Values(Spread{"k3v3+128", 2, 2}, Spread{"k3v3+128", 2, 1},
                                         Spread{"k3v3c+128", 1, 2}, Spread{"i4r+64", 2, 1},
                                         Spread{"k3v2", 1, 2}, Spread{"i8", 2, 2}));

// A model with four heads of KV.
class FourGpusSpreadTest : public testing::TestWithParam<Spread> {};
TEST_P(FourGpusSpreadTest, AnswersAreThoseOfTheirDegrees) {
  const TempFolder model;
  WriteExpertModel(model.path(), /*kv_heads=*/4);
  SpreadRig rig(GetParam(), model.path());
  CheckDegrees(rig);
}

INSTANTIATE_TEST_SUITE_P(Formats, FourGpusSpreadTest, testing::Values(Spread{"k3v3+128", 4, 2}));

// As on one GPU, the decode worker dies, or hands its sequence over with the rows of its span.
class SpreadFailoverTest : public testing::TestWithParam<int> {};  // by signal
TEST_P(SpreadFailoverTest, TheAnswerIsTheUndisturbedOne) {
  SpreadRig rig({.format = "k3v3c+64"});
  Cluster::Options options = rig.ClusterOf({}, {"--wire_codec=raw"});
  options.decode = 2;
  Cluster cluster(options);
  const TestRequest request = rig.RequestOf(100, 61, 70, /*greedy=*/true);
  const TestAnswer answer = AskDisturbed(
      cluster, {.signal = GetParam(), .tokens = 20},
      [&](const auto& on_tokens) { return SpreadRig::AskOne(cluster, request, on_tokens); });
  rig.Expect(cluster, request, answer);
  if (GetParam() == SIGTERM) {
    EXPECT_EQ(answer.usage.recomputed_tokens(), 0u) << cluster.Logs();
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, SpreadFailoverTest, testing::Values(SIGKILL, SIGTERM),
                         [](const auto& test) { return test.param == SIGKILL ? "Kill" : "Term"; });

// The decode worker's pool, of what is left of its GPUs' memory, has no room for all sequences.
// So some are swapped out with the rows of their spans, of which each GPU has a part.
TEST(SpreadSwapTest, SwapsChangeNothing) {
  constexpr double kDeviceBytes = 8.0 * (1 << 30), kShare = 0.036;
  // The bytes of a block's copies on each GPU, which are multiples of 4,096.
  constexpr double kFirstCopy = 8192, kSecondCopy = 5 * 16 * 2 * 64 * 2;
  constexpr double kSpareRows = 2;
  constexpr double kBlocks = 72;  // with both copies; the check at start needs many
  constexpr uint32_t kRequests = 8;
  SpreadRig rig({.format = "k3v3+128"});
  const auto cluster_of = [&](double share) {
    Cluster::Options options = rig.ClusterOf({}, {"--dram_memory=16MiB", "--max_batch=8"});
    for (std::string& flag : options.decode_flags) {
      if (flag == kMemory) flag = fmt::format("--gpu_memory_utilization={:.9f}", share);
    }
    return options;
  };
  const auto state_of = [](Cluster& cluster) {
    return cluster.decode().front().State().value_or(v1::WorkerState());
  };
  double surplus = 0;  // bytes of each GPU
  {
    Cluster measured(cluster_of(kShare));
    const v1::WorkerState state = state_of(measured);
    surplus = static_cast<double>(state.kv_blocks_total()) * kFirstCopy +
              (static_cast<double>(state.kv_rows_total()) + kSpareRows) * kSecondCopy -
              kBlocks * (kFirstCopy + kSecondCopy);
  }
  Cluster cluster(cluster_of(kShare - surplus / kDeviceBytes));
  EXPECT_LE(state_of(cluster).kv_blocks_total(), kBlocks);
  std::vector<TestRequest> requests;
  for (uint32_t i = 0; i < kRequests; ++i) {
    requests.push_back(
        rig.RequestOf(100 + 8 * static_cast<int>(i), 80 + i, 48, /*greedy=*/i % 2 == 0));
  }
  const std::vector<std::string> no_policy = {""};
  const auto stats = [&] { return StatsOf(cluster.decode().front()); };
  // From the second time on all prompts are cached, so that all answers meet.
  const auto swapped = [&] {
    const std::vector<TestAnswer> answers = AskForAll(cluster, requests, no_policy);
    for (uint32_t i = 0; i < kRequests; ++i) rig.Expect(cluster, requests[i], answers[i]);
    return stats().swaps_in() > 0 || testing::Test::HasFailure();
  };
  EXPECT_TRUE(WaitUntil(swapped, std::chrono::seconds(200)));
  EXPECT_GT(stats().swaps_in(), 0u);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// Another prefill worker reads the prompt's blocks, and the rows of its last span.
TEST(SpreadPeerTest, APrefixIsReadFromAnotherWorker) {
  SpreadRig rig({.format = "k3v3+64"});
  Cluster::Options options = rig.ClusterOf();
  options.prefill = 2;
  Cluster cluster(options);
  const WorkerProcess &owner = cluster.prefill()[0], &reader = cluster.prefill()[1];
  const TestRequest request = rig.RequestOf(185, 93, 8, /*greedy=*/true);
  const auto ask = [&](const WorkerProcess& worker, const std::optional<v1::PeerPrefix>& peer) {
    PlannedAnswer answer = Attempt(request, worker, cluster.decode()[0]).Run(peer);
    EXPECT_TRUE(answer.prefill.ok()) << answer.prefill.error_message() << cluster.Logs();
    EXPECT_EQ(answer.tokens, rig.Expected(request));
    return answer;
  };
  ask(owner, std::nullopt);
  const PlannedAnswer answer = ask(reader, PeerOf(owner, reader, FullBlocks(request)));
  EXPECT_EQ(answer.first.peer().outcome(), v1::PeerRead::READ);
  EXPECT_EQ(answer.first.cached_tokens(), FullBlocks(request) * 16);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

}  // namespace
}  // namespace penstock
