// The HTTP side against a server that does what servers do, good and bad.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/lifecycle.h"
#include "http/server/http_server.h"
#include "lab/load/load_run.h"
#include "lab/load/summary.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// A stream that is all there.
class Text final : public BodySource {
 public:
  Text(std::string text, State last) : text_(std::move(text)), last_(last) {}
  State Pull(std::string& out, size_t) override {
    out += std::exchange(text_, "");
    return last_;
  }

 private:
  std::string text_;
  const State last_;
};

constexpr char kAnswer[] =
    "data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[1]}],\"usage\":null}\n\n"
    "data: {\"choices\":[{\"text\":\"b\",\"token_ids\":[2,3],\"finish_reason\":\"length\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,"
    "\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n";

// The model's name in a request says how to answer it.
class FakeServer final : public HttpHandler {
 public:
  FakeServer() {
    auto started = HttpServer::Start({}, *this, metrics_, clock_);
    EXPECT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  ~FakeServer() override {
    server_.reset();
    MutexLock lock(mutex_);
    kept_.clear();
  }

  TargetOptions Target() const {
    const HostPort at = *ParseHostPort(server_->endpoint());
    return {.host = at.host, .port = at.port, .timeout = 20s};
  }
  uint32_t connections() const { return server_->connections(); }
  std::string last_body() {
    MutexLock lock(mutex_);
    return last_body_;
  }

  std::optional<HttpResponse> Screen(const HttpHead&) override { return std::nullopt; }
  HttpResponse Refuse(int status, const std::string& message) override {
    return {.status = status, .body = message};
  }
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override {
    {
      MutexLock lock(mutex_);
      last_body_ = request.head.path + " " + request.body;
    }
    const auto asked = [&](const char* name) {
      return request.body.find(fmt::format("\"model\":\"{}\"", name)) != std::string::npos;
    };
    const std::string done = "data: [DONE]\n\n";
    if (request.head.path == "/v1/models") {
      exchange->Respond({.body = R"({"object":"list","data":[{"id":"good"}]})"});
    } else if (asked("good")) {
      Stream(*exchange, kAnswer + done, BodySource::State::kEnd);
    } else if (asked("cut")) {
      Stream(*exchange, kAnswer, BodySource::State::kEnd);
    } else if (asked("broken")) {
      Stream(*exchange, kAnswer, BodySource::State::kBroken);
    } else if (asked("error")) {
      Stream(*exchange, std::string(kAnswer) + "data: {\"error\":{\"code\":\"worker_lost\"}}\n\n",
             BodySource::State::kBroken);
    } else if (asked("full")) {
      exchange->Respond({.status = 503, .body = R"({"error":{"code":"overloaded"}})"});
    } else if (asked("plain")) {
      exchange->Respond({.body = "hello"});
    } else {  // never
      MutexLock lock(mutex_);
      kept_.push_back(std::move(exchange));
    }
  }

 private:
  static void Stream(Exchange& exchange, std::string text, BodySource::State last) {
    exchange.Stream({.headers = {{"content-type", "text/event-stream"}}},
                    std::make_shared<Text>(std::move(text), last));
  }

  SteadyClock clock_;
  MetricsRegistry registry_;
  EdgeMetrics metrics_{registry_, "http"};
  std::unique_ptr<HttpServer> server_;
  Mutex mutex_;
  std::string last_body_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Exchange>> kept_ GUARDED_BY(mutex_);
};

LoadOutcome Load(LoadTarget& target, const std::string& model, uint32_t requests,
                 uint32_t concurrency) {
  target.SetModel(model);
  const auto source =
      MakeSyntheticSource({.requests = requests, .prompt_tokens = {7, 7}, .output_tokens = {3, 3}});
  LoadRun run(target, *source, {.concurrency = concurrency});
  return run.Run([](const LoadProgress&) {});
}

TEST(OpenAiTargetTest, MeasuresAnswersOnFewConnections) {
  FakeServer server;
  const auto target = *ConnectOpenAi(server.Target());
  EXPECT_EQ(*target->FindModel(), "good");
  const LoadOutcome outcome = Load(*target, "good", 200, 4);
  const LoadSummary summary = Summarise(outcome, {});
  EXPECT_EQ(summary.completed, 200u);
  EXPECT_EQ(summary.input_tokens, 1400u);
  EXPECT_EQ(summary.cached_tokens, 1000u);
  EXPECT_EQ(summary.output_tokens, 600u);
  EXPECT_EQ(summary.counted_tokens, 600u);
  EXPECT_EQ(summary.count_mismatches, 0u);
  EXPECT_LE(server.connections(), 5u);
  EXPECT_GT(summary.ttft_ms.mean, 0);
  EXPECT_EQ(outcome.records.front().finish_reason, "length");
}

TEST(OpenAiTargetTest, NamesWhatWentWrong) {
  FakeServer server;
  const auto target = *ConnectOpenAi(server.Target());
  const std::pair<const char*, const char*> cases[] = {{"cut", "stream cut"},
                                                       {"broken", "stream cut"},
                                                       {"error", "stream worker_lost"},
                                                       {"full", "503 overloaded"},
                                                       {"plain", "malformed response"}};
  for (const auto& [model, kind] : cases) {
    const LoadSummary summary = Summarise(Load(*target, model, 6, 2), {});
    EXPECT_EQ(summary.completed, 0u) << model;
    EXPECT_EQ(summary.failed, 6u) << model;
    ASSERT_EQ(summary.errors.size(), 1u) << model;
    EXPECT_EQ(summary.errors.begin()->first, kind) << model;
  }
  EXPECT_EQ(Summarise(Load(*target, "good", 5, 1), {}).completed, 5u);
}

TEST(OpenAiTargetTest, GivesUpAfterTheTimeLimit) {
  FakeServer server;
  TargetOptions options = server.Target();
  options.timeout = 50ms;
  const auto target = *ConnectOpenAi(options);
  const LoadSummary summary = Summarise(Load(*target, "never", 3, 3), {});
  EXPECT_EQ(summary.errors.at("timeout").count, 3u);
}

TEST(OpenAiTargetTest, AStopEndsWhatRunsAndWhatComes) {
  FakeServer server;
  const auto target = *ConnectOpenAi(server.Target());
  target->SetModel("never");
  const auto source = MakeSyntheticSource({.requests = 0});
  LoadRun run(*target, *source, {.concurrency = 5});
  std::atomic<uint32_t> sent = 0;
  LoadOutcome outcome;
  std::thread runner(
      [&] { outcome = run.Run([&](const LoadProgress& progress) { sent = progress.sent; }); });
  while (sent < 5) std::this_thread::yield();
  run.Stop();
  runner.join();
  EXPECT_EQ(outcome.records.size(), 5u);
  EXPECT_EQ(Summarise(outcome, {}).unfinished, 5u);
  EXPECT_EQ(Summarise(Load(*target, "good", 2, 1), {}).unfinished, 2u);  // those to come
}

TEST(OpenAiTargetTest, SendsWhatWasAskedFor) {
  FakeServer server;
  TargetOptions options = server.Target();
  options.alphabet = {.first_id = 5, .last_id = 5};
  Load(**ConnectOpenAi(options), "good", 1, 1);
  EXPECT_THAT(server.last_body(), HasSubstr("/v1/completions {"));
  EXPECT_THAT(server.last_body(), HasSubstr("\"prompt\":[5,5,5,5,5,5,5]"));
  EXPECT_THAT(server.last_body(), HasSubstr("\"ignore_eos\":true"));
  EXPECT_THAT(server.last_body(), HasSubstr("\"max_tokens\":3"));
  options.chat = options.openai_only = true;
  options.path = "/base";
  Load(**ConnectOpenAi(options), "good", 1, 1);
  EXPECT_THAT(server.last_body(), HasSubstr("/base/v1/chat/completions {"));
  EXPECT_THAT(server.last_body(), HasSubstr("\"role\":\"user\""));
  EXPECT_THAT(server.last_body(), ::testing::Not(HasSubstr("ignore_eos")));
}

TEST(OpenAiTargetTest, NobodyThere) {
  const auto target = ConnectOpenAi({.host = "127.0.0.1", .port = 1});
  EXPECT_TRUE(absl::IsUnavailable(target.status())) << target.status();
  EXPECT_THAT(target.status().ToString(), HasSubstr("refused"));
}

TEST(Models, OneIsNeeded) {
  EXPECT_EQ(*TheOnlyModel({"a"}), "a");
  EXPECT_TRUE(absl::IsNotFound(TheOnlyModel({}).status()));
  EXPECT_THAT(TheOnlyModel({"a", "b"}).status().ToString(), HasSubstr("--model"));
}

}  // namespace
}  // namespace penstock
