// Workers on emulated GPUs: prompts computed on one, answers decoded on the other, KV by host or
// GPU memory in between. The binaries are the workers' own but for the device below.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <map>

#include "lab/fake/temp_folder.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/cluster/worker_metric.h"
#include "tests/e2e/models/expert_model.h"
#include "tests/e2e/models/latent_model.h"
#include "tests/e2e/models/window_model.h"
#include "tests/support/environment.h"
#include "tests/support/files.h"

namespace penstock {
namespace {

const std::vector<std::string> kOnGpu = {"--device=cuda:0", "--gpu_memory_utilization=0.036"};

// Requests find KV of others with the same salt only.
TestAnswer AskOne(Cluster& cluster, const TestRequest& request, const std::string& salt = "") {
  v1::GenerateRequest proto = ToProto(request);
  proto.mutable_cache()->set_salt(salt);
  Deadline context(std::chrono::minutes(2));
  return Ask(cluster.client(), proto, context);
}

TEST(GpuTest, AnswersAreTheCpusAndPagesComeBack) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = kOnGpu, .decode_flags = kOnGpu, .worker_suffix = "-emulated"});
  TestRequest request = MakeRequest(40, local.vocab(), 5, /*tokens_max=*/4);
  request.sampling.temperature = 0;
  const TestAnswer first = AskOne(cluster, request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message() << "\n" << cluster.Logs();
  EXPECT_NE(first.timing.prefill_worker(), "");
  EXPECT_GT(first.timing.kv_bytes_moved(), 0u);
  EXPECT_EQ(first.tokens[0], local.Generate(request.prompt, request.sampling, request.tokens_max));
  // From pages that are there already.
  const TestAnswer again = AskOne(cluster, request);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_GT(again.usage.cached_tokens(), 0u);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

TEST(GpuTest, ForksQuantisedPages) {
  LocalGenerator local(ModelFolder());
  const auto vocab = local.vocab();
  std::vector<std::string> flags = kOnGpu;
  flags.insert(flags.end(), {"--kv_format=i8", "--dram_memory=8MiB"});
  Cluster cluster({.prefill_flags = flags, .decode_flags = flags, .worker_suffix = "-emulated"});
  TestRequest request = MakeRequest(33, vocab, 6, /*tokens_max=*/3);
  request.sampling.temperature = 0;
  request.choices = 2;  // a fork copies its partial page
  const TestAnswer first = AskOne(cluster, request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(first.tokens[0], first.tokens[1]);
  EXPECT_EQ(AskOne(cluster, request).tokens, first.tokens);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// Asks for a greedy answer, which is that of one process, and again when its prompt is cached.
void CheckTwice(Cluster& cluster, LocalGenerator& local, TestRequest request) {
  request.sampling.temperature = 0;
  const std::vector<uint32_t> want =
      local.Generate(request.prompt, request.sampling, request.tokens_max);
  for (const bool cached : {false, true}) {
    const TestAnswer answer = AskOne(cluster, request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], want) << request.prompt.size() << " tokens";
    EXPECT_GT(answer.timing.kv_bytes_moved(), 0u);
    EXPECT_EQ(answer.usage.cached_tokens() > 0, cached);
  }
}

// Workers on emulated GPUs, and one process that computes each prompt in one step, without other
// rows, on the same kind of GPU.
struct OneProcess {
  std::string model = ModelFolder();
  std::string weights = "checkpoint";
  std::string kv_format = "bf16";
  std::string numerics = "exact";
  double memory_share = 0.036;                  // of the GPU
  std::vector<std::string> flags = {};          // of the workers, beside these
  std::vector<std::string> prefill_flags = {};  // of the prefill worker only
  int longest = 300;                            // tokens of a prompt
  int tokens_max = 6;
};

// Every token is that of the one process. `look` sees the workers afterwards.
void CheckAsInOneProcess(const OneProcess& one,
                         const std::function<void(Cluster&)>& look = nullptr) {
  LocalGenerator local({.model = one.model,
                        .kv_format = one.kv_format,
                        .weights = one.weights,
                        .step_tokens = one.longest,
                        .device = "cuda:0",
                        .gpu_memory_utilization = one.memory_share,
                        .numerics = one.numerics});
  std::vector<std::string> decode = {
      "--device=cuda:0", fmt::format("--gpu_memory_utilization={}", one.memory_share),
      "--weights=" + one.weights, "--kv_format=" + one.kv_format, "--numerics=" + one.numerics};
  decode.insert(decode.end(), one.flags.begin(), one.flags.end());
  std::vector<std::string> prefill = decode;
  prefill.insert(prefill.end(), {"--random_chunks", "--chunk_tokens=128"});
  prefill.insert(prefill.end(), one.prefill_flags.begin(), one.prefill_flags.end());
  Cluster cluster({.model = one.model,
                   .prefill_flags = prefill,
                   .decode_flags = decode,
                   .worker_suffix = "-emulated"});
  for (const int tokens : {40, one.longest}) {
    const auto seed = static_cast<uint32_t>(tokens);
    CheckTwice(cluster, local, MakeRequest(tokens, local.vocab(), seed, one.tokens_max));
  }
  if (look) look(cluster);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}
constexpr int kSeveralSplits = 530;  // tokens that attention computes in two splits

// Pages of few bits, with rotated rows; with a span, attention reads the last tokens in bf16.
class FewBitsTest : public testing::TestWithParam<const char*> {};  // by format
TEST_P(FewBitsTest, AnswersAreThoseOfOneProcess) {
  CheckAsInOneProcess({.kv_format = GetParam(), .longest = kSeveralSplits});
}

INSTANTIATE_TEST_SUITE_P(Formats, FewBitsTest,
                         testing::Values("i4r", "k3v3", "k3v2", "i4r+64", "k3v3+128", "k3v3c+128"));

struct Mixture {
  const char* family;
  const char* weights;
};
void PrintTo(const Mixture& mixture, std::ostream* out) {
  *out << mixture.family << " " << mixture.weights;
}
class ExpertsTest : public testing::TestWithParam<Mixture> {};
TEST_P(ExpertsTest, AnswerAsInOneProcess) {
  const TempFolder model;
  const bool gpt_oss = GetParam().family == std::string("gpt-oss");
  gpt_oss ? WriteGptOssModel(model.path()) : WriteExpertModel(model.path());
  CheckAsInOneProcess({.model = model.path(), .weights = GetParam().weights});
}

INSTANTIATE_TEST_SUITE_P(Mixtures, ExpertsTest,
                         testing::Values(Mixture{"Qwen3-MoE", "checkpoint"},
                                         Mixture{"Qwen3-MoE", "int4"},
                                         Mixture{"gpt-oss", "checkpoint"}));

// Latent attention with groups of experts. Pages of latents go by the host's memory or the GPU's,
// as they are or encoded without loss.
class GpuLatentTest : public testing::TestWithParam<const char*> {};  // by codec
TEST_P(GpuLatentTest, AnswersAreThoseOfOneProcess) {
  const TempFolder model;
  WriteLargeLatentModel(model.path());
  CheckAsInOneProcess({.model = model.path(),
                       .memory_share = 0.045,
                       .prefill_flags = {std::string("--wire_codec=") + GetParam()},
                       .longest = kSeveralSplits});
}

INSTANTIATE_TEST_SUITE_P(Codecs, GpuLatentTest, testing::Values("raw", "lx16"));

// A model in which four of five layers have a window: GPUs have memory for those layers of the
// blocks in some sequence's window only.
TEST(GpuWindowTest, LayersWithAWindowHaveRowsOfTheirOwn) {
  const TempFolder model;
  WriteWindowModel(model.path(), 64, WindowedLayersOf::kAllButThird);
  const auto look = [](Cluster& cluster) {
    for (WorkerProcess* worker : {&cluster.prefill()[0], &cluster.decode()[0]}) {
      const auto state = worker->State();
      EXPECT_GT(state->kv_rows_total(), 0u);
      EXPECT_LT(state->kv_rows_total(), state->kv_blocks_total());
    }
  };
  CheckAsInOneProcess({.model = model.path(), .flags = {"--dram_memory=16MiB"}, .tokens_max = 20},
                      look);
}

// Second copies are in rows of their own, which lower tiers do not have. Blocks come back from
// there, after other prompts have taken the memory of all rows.
TEST(GpuSpanTest, TiersHaveFirstCopiesOnly) {
  const std::string format = "k3v3+64";
  LocalGenerator local({.model = ModelFolder(),
                        .kv_format = format,
                        .step_tokens = 300,
                        .device = "cuda:0",
                        .gpu_memory_utilization = 0.036});
  std::vector<std::string> flags = kOnGpu;
  flags.insert(flags.end(), {"--kv_format=" + format, "--dram_memory=16MiB"});
  std::vector<std::string> small = flags;
  small.insert(small.end(),
               {"--gpu_memory_utilization=0.0327", "--random_chunks", "--chunk_tokens=64"});
  Cluster cluster({.prefill_flags = small, .decode_flags = flags, .worker_suffix = "-emulated"});
  const auto state = cluster.prefill()[0].State();
  EXPECT_LT(state->kv_blocks_total(), 5u * 15);  // fewer than the prompts have
  uint32_t cached = 0;
  std::map<uint32_t, std::vector<uint32_t>> wanted;  // by seed
  for (int round = 0; round < 2; ++round) {
    for (uint32_t seed = 1; seed <= 5; ++seed) {
      TestRequest request = MakeRequest(240, local.vocab(), seed, /*tokens_max=*/4);
      request.sampling.temperature = 0;
      const TestAnswer answer = AskOne(cluster, request);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
      if (round == 0) wanted[seed] = local.Generate(request.prompt, request.sampling, 4);
      EXPECT_EQ(answer.tokens[0], wanted[seed]) << seed << " in round " << round;
      if (round == 1) cached += answer.usage.cached_tokens();
    }
  }
  EXPECT_GE(cached, 5u * 192u);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// Prompts by the library's attention, which the host computes here, and answers by ours.
class FastNumericsTest : public testing::Test {
 protected:
  const ScopedEnvironment hopper_{"PENSTOCK_EMULATED_HOPPER", "1"};
};

std::vector<std::string> WithNumerics(const std::string& numerics) {
  std::vector<std::string> flags = kOnGpu;
  flags.push_back("--numerics=" + numerics);
  return flags;
}

TEST_F(FastNumericsTest, AnswersAreThoseOfOneProcess) {
  const auto look = [](Cluster& cluster) {
    EXPECT_EQ(cluster.prefill()[0].State()->numerics(), "fast");
    EXPECT_EQ(cluster.decode()[0].State()->numerics(), "fast");
    EXPECT_NE(cluster.Logs().find("cuda 9.0 fast 1"), std::string::npos) << cluster.Logs();
  };
  CheckAsInOneProcess({.numerics = "fast", .longest = kSeveralSplits}, look);
}

// Layers with a window have rows of their own, whose tables the library's kernel walks.
TEST_F(FastNumericsTest, WindowsHaveRowsOfTheirOwn) {
  const TempFolder model;
  WriteWindowModel(model.path(), 64, WindowedLayersOf::kAllButThird);
  CheckAsInOneProcess({.model = model.path(), .numerics = "fast", .tokens_max = 20});
}

// A decode worker computes the prompt itself, in chunks of its own.
TEST_F(FastNumericsTest, ADecodeWorkerAloneComputesPromptsAlike) {
  ModelHost::Options options{.model = ModelFolder(),
                             .step_tokens = 300,
                             .device = "cuda:0",
                             .gpu_memory_utilization = 0.036,
                             .numerics = "fast"};
  LocalGenerator local(options);
  Cluster cluster({.prefill_flags = WithNumerics("fast"),
                   .decode_flags = WithNumerics("fast"),
                   .worker_suffix = "-emulated"});
  Process& prefill = cluster.prefill().front().process;
  prefill.Signal(SIGKILL);
  EXPECT_EQ(prefill.Wait(std::chrono::seconds(30)), 128 + SIGKILL);
  TestRequest request = MakeRequest(300, local.vocab(), 5, /*tokens_max=*/6);
  request.sampling.temperature = 0;
  const TestAnswer answer = AskOne(cluster, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(answer.timing.kv_bytes_moved(), 0u);
  EXPECT_EQ(answer.tokens[0], local.Generate(request.prompt, request.sampling, 6));
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// Workers of different numerics have one checkpoint and two fingerprints, and move no KV.
TEST_F(FastNumericsTest, FastAndExactWorkersDoNotShareKv) {
  Cluster cluster({.prefill_flags = WithNumerics("fast"),
                   .decode_flags = WithNumerics("exact"),
                   .worker_suffix = "-emulated"});
  const auto fast = cluster.prefill()[0].State(), exact = cluster.decode()[0].State();
  EXPECT_EQ(fast->checkpoint_fingerprint(), exact->checkpoint_fingerprint());
  EXPECT_EQ(fast->layout_fingerprint(), exact->layout_fingerprint());
  EXPECT_NE(fast->model_fingerprint(), exact->model_fingerprint());
  // The decode worker serves alone.
  const uint32_t vocab = LocalGenerator(ModelFolder()).vocab();
  const TestAnswer answer = AskOne(cluster, MakeRequest(40, vocab, 5, /*tokens_max=*/4));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
  EXPECT_EQ(answer.timing.prefill_worker(), "");
  EXPECT_EQ(answer.timing.kv_bytes_moved(), 0u);
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// Guesses of a model on the same GPU, which are often right: no token changes.
TEST(GpuDraftModelTest, ChangesNoToken) {
  LocalGenerator local({.model = ModelFolder(),
                        .step_tokens = 512,
                        .device = "cuda:0",
                        .gpu_memory_utilization = 0.036});
  const std::vector<std::string> decode = {
      "--device=cuda:0",      "--gpu_memory_utilization=0.042", "--draft_model=" + ModelFolder(),
      "--draft_weights=int4", "--draft_kv_memory=4MiB",         "--max_draft_tokens=4",
      "--random_drafts"};
  Cluster cluster({.prefill_flags = kOnGpu, .decode_flags = decode, .worker_suffix = "-emulated"});
  CheckTwice(cluster, local, MakeRequest(40, local.vocab(), 40, /*tokens_max=*/24));
  const auto state = cluster.decode()[0].State();
  EXPECT_GT(state->draft_model_tokens_accepted(), 0u) << cluster.Logs();
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// Asks until KV goes `way`, and one of `at_first` until then: the first prompt opens the lane, and
// by when it has more is for the lane to say. With another salt the same prompts are computed
// again.
void AskUntilKvGoesBy(const std::string& way, const std::vector<std::string>& at_first,
                      Cluster& cluster, const std::string& salt = "",
                      const std::string& model = ModelFolder()) {
  LocalGenerator local(model);
  std::string transport;
  for (uint32_t seed = 10; seed < 40 && transport != way; ++seed) {
    TestRequest request = MakeRequest(40, local.vocab(), seed, /*tokens_max=*/2);
    request.sampling.temperature = 0;
    const TestAnswer answer = AskOne(cluster, request, salt);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], local.Generate(request.prompt, request.sampling, 2));
    transport = answer.timing.transport();
    EXPECT_TRUE(transport == way || std::ranges::count(at_first, transport) == 1)
        << "by " << transport;
  }
  EXPECT_EQ(transport, way) << cluster.Logs();
}

// The decode worker maps the prefill worker's GPU memory.
constexpr char kByGpu[] = "shared memory, from GPU memory";
// NCCL may be ready, or fail, between the first slab of a handoff and another one.
constexpr char kByNccl[] = "nccl, from GPU memory";
const std::vector<std::string> kBesideNccl = {"tcp", "nccl", "tcp, from GPU memory", kByNccl};

// Workers of several GPUs, of which each has some heads of every page, beside workers of one: pages
// go whole from one to the other, and come back. Slabs are in the memory of a worker's first GPU.
struct Degrees {
  int prefill = 1;
  int decode = 1;
};
void PrintTo(const Degrees& degrees, std::ostream* out) {
  *out << degrees.prefill << " and " << degrees.decode << " GPUs";
}
class DegreesTest : public testing::TestWithParam<Degrees> {};

std::vector<std::string> OnGpus(int count, const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = kOnGpu;
  flags.insert(flags.end(), {"--nccl_library=" FAKE_NCCL,
                             "--tensor_parallel=" + std::to_string(count), "--gpu_graphs=always"});
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

// KV goes `way` between workers of several GPUs, at first by `at_first`, and answers are those of
// one process. `look` sees the workers afterwards.
struct SeveralGpus {
  Degrees degrees;
  std::string model = ModelFolder();
  std::vector<std::string> flags = {};  // of the workers
  std::string way = kByGpu;
  std::vector<std::string> at_first = {"shared memory"};
};
void WorkTogether(const SeveralGpus& several, const std::function<void(Cluster&)>& look) {
  const TempFolder folder;
  const std::string log = folder.path() + "/nccl";
  const ScopedEnvironment gpus("PENSTOCK_EMULATED_GPUS", "4");
  const ScopedEnvironment nccl_log("FAKE_NCCL_LOG", log);
  LocalGenerator local(several.model);
  {
    Cluster cluster({.model = several.model,
                     .prefill_flags = OnGpus(several.degrees.prefill, several.flags),
                     .decode_flags = OnGpus(several.degrees.decode, several.flags),
                     .worker_suffix = "-emulated"});
    CheckTwice(cluster, local, MakeRequest(40, local.vocab(), 5, /*tokens_max=*/4));
    AskUntilKvGoesBy(several.way, several.at_first, cluster, "", several.model);
    EXPECT_EQ(cluster.Logs().find("_memory_not_used"), std::string::npos) << cluster.Logs();
    look(cluster);
    EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
  }
  EXPECT_EQ(ReadFile(log).find("violation"), std::string::npos) << ReadFile(log);
  EXPECT_EQ(ReadFile(log).find("aborted"), std::string::npos) << ReadFile(log);
}

constexpr char kDetours[] = "penstock_kv_gpu_detours_total";

// All GPUs of a worker access the first one's memory.
void ExpectNoDetours(Cluster& cluster) {
  EXPECT_EQ(cluster.Logs().find("peer_access_not_used"), std::string::npos) << cluster.Logs();
  EXPECT_EQ(MetricOf(cluster.prefill()[0], kDetours), 0);
  EXPECT_EQ(MetricOf(cluster.decode()[0], kDetours), 0);
}

TEST_P(DegreesTest, WorkTogether) { WorkTogether({.degrees = GetParam()}, ExpectNoDetours); }

// Each GPU has a part of every expert.
TEST_P(DegreesTest, ShareExperts) {
  const TempFolder model;
  WriteGptOssModel(model.path());
  WorkTogether({.degrees = GetParam(), .model = model.path()}, ExpectNoDetours);
}

INSTANTIATE_TEST_SUITE_P(Gpus, DegreesTest,
                         testing::Values(Degrees{2, 1}, Degrees{1, 2}, Degrees{2, 2}));

// A model with four heads of KV.
class FourGpusTest : public testing::TestWithParam<Degrees> {};
TEST_P(FourGpusTest, WorkTogether) {
  const TempFolder model;
  WriteExpertModel(model.path(), /*kv_heads=*/4);
  WorkTogether({.degrees = GetParam(), .model = model.path()}, ExpectNoDetours);
}

INSTANTIATE_TEST_SUITE_P(Gpus, FourGpusTest,
                         testing::Values(Degrees{4, 1}, Degrees{2, 4}, Degrees{4, 4}));

// Every GPU has whole pages of latents, and some of the heads that read them.
TEST(SeveralGpusTest, ShareHeadsOfLatents) {
  const TempFolder model;
  WriteLargeLatentModel(model.path());
  WorkTogether(
      {.degrees = {1, 2}, .model = model.path(), .flags = {"--gpu_memory_utilization=0.045"}},
      ExpectNoDetours);
}

// As on one GPU and on CPUs.
TEST(SeveralGpusTest, SayWhatLatentsDoNotHave) {
  const ScopedEnvironment gpus("PENSTOCK_EMULATED_GPUS", "2");
  const TempFolder model;
  WriteLargeLatentModel(model.path());
  for (const auto& [flag, error] : {std::pair("--kv_format=i8", "latents, which are always bf16"),
                                    {"--kv_format=k3v3+128", "latents, which are always bf16"},
                                    {"--kv_eviction=all", "attention sinks and latents"},
                                    {"--kv_selection=all", "sliding windows and latents"}}) {
    std::vector<std::string> command = {"penstock-decode-emulated", "--model=" + model.path(),
                                        "--listen=127.0.0.1:0", flag};
    const std::vector<std::string> flags = OnGpus(2, {"--gpu_memory_utilization=0.045"});
    command.insert(command.end(), flags.begin(), flags.end());
    Process worker(command, model.path() + "/log");
    EXPECT_NE(worker.Wait(std::chrono::minutes(2)).value_or(0), 0) << flag;
    EXPECT_THAT(worker.Log(), testing::HasSubstr(error)) << flag;
  }
}

// Codecs, quantised pages, and lanes other than those within a host.
TEST(SeveralGpusTest, EncodeSlabs) {
  WorkTogether({.degrees = {2, 2}, .flags = {"--wire_codec=lxr"}}, ExpectNoDetours);
}

// A codec with a calibration: what the GPUs encode and decode is what a CPU makes of the KV.
class CalibratedTest : public testing::TestWithParam<Degrees> {};
TEST_P(CalibratedTest, GpusEncodeSlabs) {
  const auto in_host = [](Cluster& cluster) {
    return MetricOf(cluster.decode()[0], "penstock_kv_landed_slabs_total{memory=\"host\"}");
  };
  const auto look = [&](Cluster& cluster) {
    const double before = in_host(cluster);
    EXPECT_GE(before, 0);
    LocalGenerator local(ModelFolder());
    TestRequest request = MakeRequest(150, local.vocab(), 90, /*tokens_max=*/4);
    request.sampling.temperature = 0;
    v1::GenerateRequest proto = ToProto(request);
    proto.set_kv_policy("cgx2");
    Deadline context(std::chrono::minutes(2));
    const TestAnswer answer = Ask(cluster.client(), proto, context);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0],
              local.Generate(request.prompt, request.sampling, 4, 0, {KvCodec::kCgx, 2}));
    EXPECT_EQ(answer.timing.transport(), kByGpu);
    EXPECT_THAT(answer.timing.kv_codecs(), testing::ElementsAre("cgx2"));
    EXPECT_EQ(in_host(cluster), before);
  };
  WorkTogether({.degrees = GetParam(), .flags = {"--wire_codec=raw", "--lossy_kv=cgx2"}}, look);
}

INSTANTIATE_TEST_SUITE_P(Gpus, CalibratedTest, testing::Values(Degrees{1, 1}, Degrees{2, 1}));

TEST(SeveralGpusTest, PackSlabsInTheHostsMemory) {
  WorkTogether({.degrees = {2, 2}, .flags = {"--wire=tcp"}, .way = "tcp", .at_first = {"tcp"}},
               ExpectNoDetours);
}

TEST(SeveralGpusTest, SendFromTheFirstOnesMemory) {
  const ScopedEnvironment hosts("PENSTOCK_TEST_HOSTS", "1");
  const ScopedEnvironment memory("PENSTOCK_TEST_DEVICE_MEMORY", "works");
  const ScopedEnvironment transports("UCX_TLS", "tcp");
  WorkTogether({.degrees = {2, 1},
                .flags = {"--wire=ucx"},
                .way = "tcp, from GPU memory",
                .at_first = {"tcp"}},
               ExpectNoDetours);
}

TEST(SeveralGpusTest, SendByNccl) {
  const ScopedEnvironment hosts("PENSTOCK_TEST_HOSTS", "1");
  WorkTogether({.degrees = {2, 1},
                .flags = {"--wire=nccl", "--wire_codec=raw"},
                .way = kByNccl,
                .at_first = kBesideNccl},
               ExpectNoDetours);
}

// GPUs without peer access, or with one that loses what is written, copy their heads by way of
// page-locked host memory.
class NoPeersTest : public testing::TestWithParam<const char*> {};  // as PENSTOCK_EMULATED_PEERS
TEST_P(NoPeersTest, SlabsTakeADetour) {
  const ScopedEnvironment peers("PENSTOCK_EMULATED_PEERS", GetParam());
  const auto look = [](Cluster& cluster) {
    EXPECT_NE(cluster.Logs().find("peer_access_not_used"), std::string::npos) << cluster.Logs();
    EXPECT_GT(MetricOf(cluster.prefill()[0], kDetours), 0);
    EXPECT_GT(MetricOf(cluster.decode()[0], kDetours), 0);
  };
  WorkTogether({.degrees = {2, 2}}, look);
}

INSTANTIATE_TEST_SUITE_P(Peers, NoPeersTest, testing::Values("refused", "astray"));

// UCX sees the emulated GPU's memory as the host's, which the CPU cannot touch at its own address.
class GpuMemoryTest : public testing::TestWithParam<const char*> {};  // by codec
TEST_P(GpuMemoryTest, KvStaysThereBetweenHosts) {
  const ScopedEnvironment hosts("PENSTOCK_TEST_HOSTS", "1");
  const ScopedEnvironment memory("PENSTOCK_TEST_DEVICE_MEMORY", "works");
  const ScopedEnvironment transports("UCX_TLS", "tcp");
  std::vector<std::string> flags = kOnGpu;
  flags.emplace_back("--wire=ucx");
  flags.emplace_back(std::string("--wire_codec=") + GetParam());
  Cluster cluster({.prefill_flags = flags, .decode_flags = flags, .worker_suffix = "-emulated"});
  AskUntilKvGoesBy("tcp, from GPU memory", {"tcp"}, cluster);
  EXPECT_EQ(cluster.Logs().find("gpu_memory_not_used"), std::string::npos) << cluster.Logs();
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

INSTANTIATE_TEST_SUITE_P(Codecs, GpuMemoryTest, testing::Values("raw", "lxr"));

// The GPUs pack and check slabs in page-locked host memory.
TEST_P(GpuMemoryTest, KvGoesThroughTheHostsMemory) {
  std::vector<std::string> flags = kOnGpu;
  flags.emplace_back("--wire=tcp");
  flags.emplace_back(std::string("--wire_codec=") + GetParam());
  Cluster cluster({.prefill_flags = flags, .decode_flags = flags, .worker_suffix = "-emulated"});
  AskUntilKvGoesBy("tcp", {"tcp"}, cluster);
  EXPECT_EQ(cluster.Logs().find("_memory_not_used"), std::string::npos) << cluster.Logs();
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

TEST_P(GpuMemoryTest, KvStaysThereWithinAHost) {
  std::vector<std::string> flags = kOnGpu;
  flags.emplace_back(std::string("--wire_codec=") + GetParam());
  Cluster cluster({.prefill_flags = flags, .decode_flags = flags, .worker_suffix = "-emulated"});
  AskUntilKvGoesBy(kByGpu, {"shared memory"}, cluster);
  EXPECT_EQ(cluster.Logs().find("gpu_memory_not_used"), std::string::npos) << cluster.Logs();
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// What a GPU may fail at when it maps the other process's memory: all of it, the arena of slabs
// only, or silently.
class GpuMemoryFailsTest : public testing::TestWithParam<const char*> {};
TEST_P(GpuMemoryFailsTest, KvGoesByTheHost) {
  const ScopedEnvironment imports("PENSTOCK_EMULATED_IMPORTS", GetParam());
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = kOnGpu, .decode_flags = kOnGpu, .worker_suffix = "-emulated"});
  const auto used = [&] { return cluster.Logs().find("gpu_memory_not_used"); };
  for (uint32_t seed = 10; seed < 40 && used() == std::string::npos; ++seed) {
    TestRequest request = MakeRequest(40, local.vocab(), seed, /*tokens_max=*/2);
    request.sampling.temperature = 0;
    const TestAnswer answer = AskOne(cluster, request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], local.Generate(request.prompt, request.sampling, 2));
  }
  EXPECT_NE(used(), std::string::npos) << cluster.Logs();
  const TestAnswer last = AskOne(cluster, MakeRequest(40, local.vocab(), 50, /*tokens_max=*/2));
  EXPECT_EQ(last.timing.transport(), "shared memory") << cluster.Logs();
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

INSTANTIATE_TEST_SUITE_P(Imports, GpuMemoryFailsTest,
                         testing::Values("refused", "large refused", "astray"));

// The lane was tried with success, and the slabs behind are not what was sent.
TEST(GpuTest, DamagedSlabsAreNeverUsed) {
  const ScopedEnvironment imports("PENSTOCK_EMULATED_IMPORTS", "large astray");
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill_flags = kOnGpu, .decode_flags = kOnGpu, .worker_suffix = "-emulated"});
  const auto damaged = [&] { return cluster.Logs().find("slab_damaged") != std::string::npos; };
  for (uint32_t seed = 10; seed < 40 && !damaged(); ++seed) {
    TestRequest request = MakeRequest(40, local.vocab(), seed, /*tokens_max=*/2);
    request.sampling.temperature = 0;
    const TestAnswer answer = AskOne(cluster, request);
    if (!answer.status.ok()) continue;
    EXPECT_EQ(answer.tokens[0], local.Generate(request.prompt, request.sampling, 2));
  }
  EXPECT_TRUE(damaged()) << cluster.Logs();
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// The decode worker has mapped memory of a process that is gone. Answers are those before: a CPU's
// may differ, where its products round activations otherwise.
TEST(GpuTest, AKilledPrefillWorkerIsSurvived) {
  Cluster cluster({.prefill = 2,
                   .prefill_flags = kOnGpu,
                   .decode_flags = kOnGpu,
                   .worker_suffix = "-emulated"});
  AskUntilKvGoesBy(kByGpu, {"shared memory"}, cluster);
  const uint32_t vocab = LocalGenerator(ModelFolder()).vocab();
  std::vector<TestRequest> requests;
  std::vector<std::vector<uint32_t>> expected;
  for (uint32_t seed = 60; seed < 64; ++seed) {
    requests.push_back(MakeRequest(60, vocab, seed, /*tokens_max=*/4));
    requests.back().sampling.temperature = 0;
    const TestAnswer answer = AskOne(cluster, requests.back(), "before");
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    expected.push_back(answer.tokens[0]);
  }
  std::vector<std::future<TestAnswer>> answers;
  for (const TestRequest& request : requests) {
    answers.push_back(
        std::async(std::launch::async, [&cluster, request] { return AskOne(cluster, request); }));
  }
  Process& victim = cluster.prefill().front().process;
  answers.front().wait();
  victim.Signal(SIGKILL);
  EXPECT_EQ(victim.Wait(std::chrono::seconds(30)), 128 + SIGKILL);
  for (size_t i = 0; i < answers.size(); ++i) {
    const TestAnswer answer = answers[i].get();
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], expected[i]);
  }
  AskUntilKvGoesBy(kByGpu, {"shared memory"}, cluster, "after");
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

// NCCL is a fake that moves bytes between the processes and writes down what is forbidden.
class NcclBetweenHostsTest : public testing::TestWithParam<const char*> {
 protected:
  void TearDown() override {
    EXPECT_EQ(ReadFile(log_).find("violation"), std::string::npos) << ReadFile(log_);
  }
  static Cluster::Options Options() {
    std::vector<std::string> flags = kOnGpu;
    flags.insert(flags.end(), {"--wire=nccl", "--nccl_library=" FAKE_NCCL,
                               std::string("--wire_codec=") + GetParam()});
    return {.prefill_flags = flags, .decode_flags = flags, .worker_suffix = "-emulated"};
  }

  const TempFolder folder_;
  const std::string log_ = folder_.path() + "/nccl";
  const ScopedEnvironment hosts_{"PENSTOCK_TEST_HOSTS", "1"};
  const ScopedEnvironment nccl_log_{"FAKE_NCCL_LOG", log_};
};

TEST_P(NcclBetweenHostsTest, KvStaysInGpuMemoryBetweenHosts) {
  Cluster cluster(Options());
  AskUntilKvGoesBy(kByNccl, kBesideNccl, cluster);
  EXPECT_EQ(cluster.Logs().find("nccl_lane_failed"), std::string::npos) << cluster.Logs();
  EXPECT_EQ(cluster.Logs().find("gpu_memory_not_used"), std::string::npos) << cluster.Logs();
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

TEST_P(NcclBetweenHostsTest, KvGoesThroughTheHostsMemoryAfterAFailure) {
  const ScopedEnvironment fault("FAKE_NCCL_FAULT", "error_at=40");
  Cluster cluster(Options());
  AskUntilKvGoesBy(kByNccl, kBesideNccl, cluster);
  LocalGenerator local(ModelFolder());
  const auto failed = [&] { return cluster.Logs().find("nccl_lane_failed") != std::string::npos; };
  for (uint32_t seed = 100; seed < 140 && !failed(); ++seed) {
    TestRequest request = MakeRequest(60, local.vocab(), seed, /*tokens_max=*/2);
    request.sampling.temperature = 0;
    const TestAnswer answer = AskOne(cluster, request);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << "\n" << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], local.Generate(request.prompt, request.sampling, 2));
  }
  EXPECT_TRUE(failed()) << cluster.Logs();
  AskUntilKvGoesBy("tcp", kBesideNccl, cluster, "after");
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

INSTANTIATE_TEST_SUITE_P(Codecs, NcclBetweenHostsTest, testing::Values("raw", "lxr"));

}  // namespace
}  // namespace penstock
