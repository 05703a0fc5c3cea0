// The contract of the whole system: prompts that go through router, prefill worker, wire and decode
// worker, batched and cut into chunks at random, give token for token what one process gives.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "model/tokenizer/tokenizer.h"
#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/disturbance.h"
#include "tests/e2e/cluster/local_generator.h"
#include "tests/e2e/cluster/requests.h"
#include "tests/e2e/grammar_oracle.h"
#include "tests/e2e/models/deep_model.h"
#include "tests/e2e/models/expert_model.h"
#include "tests/e2e/models/gguf_model.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr int kConcurrency = 16;

std::vector<TestAnswer> AskAll(Cluster& cluster, const std::vector<TestRequest>& requests,
                               int at_once) {
  std::vector<TestAnswer> answers(requests.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < at_once; ++i) {
    clients.emplace_back([&] {
      for (size_t r = next++; r < requests.size(); r = next++) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
        answers[r] = Ask(cluster.client(), ToProto(requests[r]), context);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  return answers;
}

// Makes beam searches of some requests, with prompts that a test can compute at every step.
void SearchSome(std::vector<TestRequest>& requests) {
  for (size_t r = 5; r < requests.size(); r += 6) {
    TestRequest& request = requests[r];
    if (request.sampling.constraint != nullptr) continue;
    request.prompt.resize(std::min<size_t>(request.prompt.size(), 150));
    request.beams = 2 + static_cast<int>(r % 7);
    request.choices = 1 + static_cast<int>(r % 2);
  }
}

void ExpectExact(Cluster& cluster, const std::vector<TestRequest>& requests, LocalGenerator& local,
                 int at_once = kConcurrency) {
  const std::vector<TestAnswer> answers = AskAll(cluster, requests, at_once);
  for (size_t r = 0; r < requests.size(); ++r) {
    const TestRequest& request = requests[r];
    ASSERT_TRUE(answers[r].status.ok()) << r << ": " << answers[r].status.error_message() << "\n"
                                        << cluster.Logs();
    if (request.beams > 0) {
      const BeamRules rules{
          .width = request.beams, .answers = request.choices, .tokens_max = request.tokens_max};
      EXPECT_EQ(answers[r].tokens, local.Search(request.prompt, request.sampling, rules)) << r;
      continue;
    }
    for (uint32_t choice = 0; choice < answers[r].tokens.size(); ++choice) {
      EXPECT_EQ(answers[r].tokens[choice],
                local.Generate(request.prompt, request.sampling, request.tokens_max, choice))
          << "request " << r << " choice " << choice << " of " << request.prompt.size()
          << " prompt tokens, temperature " << request.sampling.temperature;
    }
    EXPECT_EQ(answers[r].usage.prompt_tokens(), request.prompt.size());
  }
  EXPECT_TRUE(cluster.AllBlocksFree(std::chrono::seconds(30))) << cluster.Logs();
}

TEST(ExactTest, SixtyFourPromptsOverTwoByTwoWorkers) {
  LocalGenerator local(ModelFolder());
  Cluster cluster({.prefill = 2, .decode = 2, .prefill_flags = {"--random_chunks"}});
  const auto vocab = local.vocab();
  std::vector<TestRequest> requests = MakeRequests(64, 1900, vocab, 11);
  const GrammarOracle grammars(ModelFolder(), vocab);
  grammars.ConstrainSome(requests);
  SearchSome(requests);
  ExpectExact(cluster, requests, local);
  for (WorkerProcess& worker : cluster.prefill()) EXPECT_GT(worker.State()->steps(), 0u);
  for (WorkerProcess& worker : cluster.decode()) EXPECT_GT(worker.State()->steps(), 0u);
}

// Prompts that repeat themselves, so that guesses are right and wrong; small pools, so that
// sequences with guesses are swapped out; masks, choices, penalties and log-probabilities as
// everywhere.
TEST(ExactTest, SpeculationChangesNoToken) {
  LocalGenerator local(ModelFolder());
  Cluster cluster(
      {.prefill = 2,
       .decode = 2,
       .prefill_flags = {"--random_chunks"},
       .decode_flags = {"--speculation=ngram", "--max_draft_tokens=6"},
       .first_decode_flags = {"--kv_memory=12MiB", "--max_batch=5", "--random_drafts"}});
  const auto vocab = local.vocab();
  std::vector<TestRequest> requests = MakeRequests(64, 600, vocab, 31);
  for (size_t r = 0; r < requests.size(); ++r) {
    TestRequest& request = requests[r];
    const size_t period = 5 + r % 40;
    for (size_t i = period; i < request.prompt.size(); ++i) {
      request.prompt[i] = request.prompt[i - period];
    }
    request.tokens_max = 60;
    request.choices = 1 + static_cast<int>(r % 5 == 0);
    if (r % 7 == 1) request.sampling.logit_bias = {{7, 4.0f}, {9, -3.0f}};
    if (r % 7 > 1 && r % 2 == 0) request.sampling.temperature = 0;
  }
  const GrammarOracle grammars(ModelFolder(), vocab);
  grammars.ConstrainSome(requests);
  SearchSome(requests);
  ExpectExact(cluster, requests, local);
  const auto state = cluster.decode()[0].State();  // The other may find that guesses do not pay.
  EXPECT_GT(state->draft_tokens_accepted(), 0u);
  EXPECT_GT(state->draft_tokens(), state->draft_tokens_accepted());
}

// The bundled model with weights of four bits guesses for a model of the same logits that takes
// several times as long; so most guesses are right.
class DraftModelTest : public testing::Test {
 protected:
  DraftModelTest() { WriteDeepModel(folder_.path(), 40); }

  Cluster::Options Workers(std::vector<std::string> first_decode_flags) const {
    return {.model = folder_.path(),
            .decode = 2,
            .decode_flags = {"--draft_model=" + ModelFolder(), "--draft_weights=int4",
                             "--max_draft_tokens=6", "--random_drafts"},
            .first_decode_flags = std::move(first_decode_flags)};
  }

  const TempFolder folder_;
};

TEST_F(DraftModelTest, ChangesNoToken) {
  LocalGenerator local(
      {.model = folder_.path(), .kv_memory = "256MiB", .threads = 1, .step_tokens = 2048});
  Cluster cluster(Workers({"--speculation=ngram", "--draft_kv_memory=6MiB", "--max_batch=3"}));
  const auto vocab = local.vocab();
  std::vector<TestRequest> requests = MakeRequests(24, 200, vocab, 33);
  for (size_t r = 0; r < requests.size(); ++r) {
    requests[r].tokens_max = 60;
    requests[r].choices = 1 + static_cast<int>(r % 5 == 0);
    if (r % 7 == 1) requests[r].sampling.logit_bias = {{7, 4.0f}, {9, -3.0f}};
  }
  const GrammarOracle grammars(folder_.path(), vocab);
  grammars.ConstrainSome(requests);
  ExpectExact(cluster, requests, local, 4);
  for (WorkerProcess& worker : cluster.decode()) {
    const auto state = worker.State();
    EXPECT_GT(state->draft_model_tokens_accepted(), 0u);
    EXPECT_GT(state->draft_model_tokens(), state->draft_model_tokens_accepted());
    EXPECT_GE(state->draft_tokens(), state->draft_model_tokens());
  }
}

// After a failover, and after a move, the draft model computes the tokens again.
TEST_F(DraftModelTest, FollowsASequenceToAnotherWorker) {
  LocalGenerator local(
      {.model = folder_.path(), .kv_memory = "256MiB", .threads = 1, .step_tokens = 2048});
  for (const int signal : {SIGKILL, SIGTERM}) {
    Cluster cluster(Workers({}));
    TestRequest request = MakeRequest(150, local.vocab(), 34, 200);
    request.sampling = {.temperature = signal == SIGKILL ? 0.0f : 0.4f, .seed = 5};
    const TestAnswer answer =
        AskDisturbed(cluster, {.signal = signal, .tokens = 20}, [&](const auto& on_tokens) {
          Deadline context(std::chrono::minutes(2));
          return Ask(cluster.client(), ToProto(request), context, on_tokens);
        });
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster.Logs();
    EXPECT_EQ(answer.tokens[0], local.Generate(request.prompt, request.sampling, 200));
    uint64_t right = 0;  // on the worker that is left
    for (WorkerProcess& worker : cluster.decode()) {
      if (const auto state = worker.State()) right += state->draft_model_tokens_accepted();
    }
    EXPECT_GT(right, 0u) << cluster.Logs();
  }
}

// Exact codecs change nothing but the bytes on the wire.
TEST(ExactTest, EncodedSlabsChangeNoToken) {
  LocalGenerator local(ModelFolder());
  const auto vocab = local.vocab();
  for (const char* codec : {"lx16", "lxr"}) {
    Cluster cluster({.prefill_flags = {"--random_chunks", fmt::format("--wire_codec={}", codec)}});
    ExpectExact(cluster, MakeRequests(16, 1500, vocab, 14), local);
  }
}

TEST(ExactTest, ManyChoicesOverTcpWithSmallPools) {
  LocalGenerator local(ModelFolder());
  // Room for about one long prompt: others wait for blocks, and nothing may deadlock.
  Cluster cluster({.prefill_flags = {"--random_chunks", "--wire=tcp", "--kv_memory=6MiB"},
                   .decode_flags = {"--wire=tcp", "--kv_memory=12MiB", "--max_batch=3"}});
  const auto vocab = local.vocab();
  std::vector<TestRequest> requests = MakeRequests(24, 700, vocab, 12);
  for (size_t r = 0; r < requests.size(); ++r) requests[r].choices = 1 + static_cast<int>(r % 4);
  // Swapped out and in, and each choice with a mask of its own.
  const GrammarOracle grammars(ModelFolder(), vocab);
  grammars.ConstrainSome(requests);
  SearchSome(requests);
  ExpectExact(cluster, requests, local);
}

// Quantised once, by the prefill worker: what the decode worker attends to are the same pages.
TEST(ExactTest, QuantisedPages) {
  for (const std::string format : {"i8", "k3v2"}) {
    LocalGenerator local(ModelFolder(), format);
    Cluster cluster({.prefill_flags = {"--random_chunks", "--kv_format=" + format},
                     .decode_flags = {"--kv_format=" + format}});
    const auto vocab = local.vocab();
    ExpectExact(cluster, MakeRequests(12, 600, vocab, 14), local);
  }
}

// Four-bit weights, rounded when each process loads them: rows do not depend on batch or chunks.
TEST(ExactTest, FourBitWeights) {
  LocalGenerator local({.model = ModelFolder(),
                        .kv_memory = "256MiB",
                        .weights = "int4",
                        .threads = 1,
                        .step_tokens = 2048});
  Cluster cluster(
      {.prefill_flags = {"--random_chunks", "--weights=int4"}, .decode_flags = {"--weights=int4"}});
  const auto vocab = local.vocab();
  ExpectExact(cluster, MakeRequests(24, 900, vocab, 15), local);
}

// A GGUF file with matrices of 4 and 8 bits in one product: what a process alone gives, and text
// that is cut into the same tokens as by the directory's tokenizer.
TEST(ExactTest, GgufFile) {
  const TempFolder folder;
  const std::string model = folder.Write("tiny-q4.gguf", BundledModelAsGguf());
  LocalGenerator local({.model = model, .kv_memory = "256MiB", .threads = 1, .step_tokens = 2048});
  Cluster cluster({.model = model, .prefill_flags = {"--random_chunks"}});
  ExpectExact(cluster, MakeRequests(24, 900, local.vocab(), 16), local);
  const auto tokenizer = Tokenizer::Load(ModelFolder());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "The river runs 1,234 miles;\n\nit's older than the hills.";
  TestRequest request = MakeRequests(1, 1, local.vocab(), 17)[0];
  request.prompt = *(*tokenizer)->Encode(text);
  v1::GenerateRequest proto = ToProto(request);
  proto.set_text(text);
  grpc::ClientContext context;
  const TestAnswer answer = Ask(cluster.client(), proto, context);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message() << cluster.Logs();
  EXPECT_EQ(answer.tokens[0], local.Generate(request.prompt, request.sampling, request.tokens_max));
}

// A row's experts do not depend on its batch, in 16 bits and in four.
TEST(ExactTest, MixtureOfExperts) {
  const TempFolder folder;
  WriteExpertModel(folder.path());
  for (const char* weights : {"checkpoint", "int4"}) {
    LocalGenerator local({.model = folder.path(),
                          .kv_memory = "256MiB",
                          .weights = weights,
                          .threads = 1,
                          .step_tokens = 2048});
    const std::string flag = fmt::format("--weights={}", weights);
    Cluster cluster({.model = folder.path(),
                     .prefill_flags = {"--random_chunks", flag},
                     .decode_flags = {flag}});
    ExpectExact(cluster, MakeRequests(24, 900, local.vocab(), 18), local);
  }
}

// Attention sinks, windows in some layers, and experts of MXFP4.
TEST(ExactTest, GptOss) {
  const TempFolder folder;
  WriteGptOssModel(folder.path());
  LocalGenerator local(
      {.model = folder.path(), .kv_memory = "256MiB", .threads = 1, .step_tokens = 2048});
  Cluster cluster({.model = folder.path(), .prefill_flags = {"--random_chunks"}});
  ExpectExact(cluster, MakeRequests(24, 900, local.vocab(), 19), local);
}

TEST(ExactTest, KvReallyMoves) {
  Cluster cluster({});
  // The scheduler decides how many layers are sent while others are computed: on a busy machine the
  // first prompts may see none.
  uint32_t overlapped = 0;
  for (uint64_t seed = 13; overlapped == 0 && seed < 33; ++seed) {
    TestRequest request = MakeRequests(2, 512, 256, seed)[1];
    request.tokens_max = 4;
    grpc::ClientContext context;
    const TestAnswer answer = Ask(cluster.client(), ToProto(request), context);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    // 512 tokens of 5 layers, 2 KV heads of 64, keys and values, two bytes each.
    EXPECT_EQ(answer.timing.kv_bytes_moved(), 512u * 5 * 2 * 64 * 2 * 2);
    EXPECT_FALSE(answer.timing.transport().empty());
    overlapped = answer.timing.layers_overlapped();
  }
  EXPECT_GT(overlapped, 0u);
}

}  // namespace
}  // namespace penstock
