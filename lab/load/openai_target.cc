#include <nlohmann/json.hpp>

#include "base/mutex.h"
#include "lab/load/http_client.h"
#include "lab/load/openai_event.h"
#include "lab/load/sse_parser.h"
#include "lab/load/target.h"

namespace penstock {
namespace {

constexpr size_t kMaxPlainBody = 1 << 20;  // of what is no stream; more is dropped
constexpr auto kModelsTimeout = std::chrono::seconds(10);

bool IsStream(const HttpReply& reply) {
  return reply.content_type.starts_with("text/event-stream");
}

// A short name for what went wrong below HTTP.
std::string KindOf(const absl::Status& status) {
  if (absl::IsDeadlineExceeded(status)) return "timeout";
  if (absl::IsDataLoss(status)) return "malformed response";
  if (absl::IsAborted(status)) return "stream cut";
  return Message(status).starts_with("connect") ? "connect" : "connection lost";
}

// Turns the stream of one answer into its record.
class AnswerExchange final : public HttpExchange {
 public:
  AnswerExchange(LoadRecord record, LoadCall::OnDone done)
      : record_(std::move(record)),
        done_(std::move(done)),
        events_([this](std::string_view data) { OnEvent(data); }) {}

  void OnStart(TimePoint now) override { record_.sent = now; }

  void OnBody(const HttpReply& reply, std::string_view bytes, TimePoint now) override {
    now_ = now;
    if (reply.status == 200 && IsStream(reply)) {
      if (!events_.Take(bytes)) Fail("malformed response", "an event of more than 4 MiB");
      return;
    }
    if (body_.size() < kMaxPlainBody) body_ += bytes;
  }

  void OnEnd(const absl::Status& status, const HttpReply& reply, TimePoint now) override {
    record_.end = now;
    Judge(status, reply);
    if (!record_.has_usage) {
      record_.prompt_tokens = record_.asked_prompt_tokens;
      record_.output_tokens = record_.counted_tokens;
    }
    done_(std::move(record_));
  }

 private:
  void Judge(const absl::Status& status, const HttpReply& reply) {
    if (record_.result == LoadResult::kFailed || absl::IsCancelled(status)) return;
    if (!status.ok()) return Fail(KindOf(status), Message(status));
    if (reply.status != 200) {
      const OpenAiError error = ParseOpenAiError(reply.status, body_);
      return Fail(error.kind, error.message);
    }
    if (!IsStream(reply)) return Fail("malformed response", "the answer is no event stream");
    if (!finished_) return Fail("stream cut", "the stream ended without [DONE]");
    if (record_.counted_tokens == 0) return Fail("empty answer", "the stream held no token");
    record_.result = LoadResult::kGood;
  }

  void OnEvent(std::string_view data) {
    const absl::StatusOr<OpenAiEvent> event = ParseOpenAiEvent(data);
    if (!event.ok()) return Fail("malformed response", Message(event.status()));
    if (!event->error.empty()) return Fail(event->error, event->error_message);
    finished_ = finished_ || event->done;
    const uint32_t tokens = event->tokens.value_or(event->has_text ? 1 : 0);
    if (tokens > 0) record_.OnTokens(now_, tokens);
    if (event->has_text && !event->tokens) record_.exact_count = false;
    if (!event->finish_reason.empty()) record_.finish_reason = event->finish_reason;
    if (!event->usage) return;
    record_.has_usage = true;
    record_.prompt_tokens = event->usage->prompt_tokens;
    record_.cached_tokens = event->usage->cached_tokens;
    record_.output_tokens = event->usage->output_tokens;
  }

  void Fail(std::string kind, std::string words) {
    if (record_.result == LoadResult::kUnfinished) record_.Fail(std::move(kind), std::move(words));
  }

  LoadRecord record_;
  const LoadCall::OnDone done_;
  SseParser events_;
  std::string body_;
  TimePoint now_;
  bool finished_ = false;
};

// Waits for one whole response.
class WholeExchange final : public HttpExchange {
 public:
  void OnStart(TimePoint) override {}
  void OnBody(const HttpReply&, std::string_view bytes, TimePoint) override {
    if (body_.size() < kMaxPlainBody) body_ += bytes;
  }
  void OnEnd(const absl::Status& status, const HttpReply& reply, TimePoint) override {
    MutexLock lock(mutex_);
    status_ = status;
    code_ = reply.status;
    ended_ = true;
    changed_.NotifyAll();
  }
  absl::StatusOr<std::string> Await() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!ended_) changed_.Wait(mutex_);
    RETURN_IF_ERROR(status_);
    if (code_ == 200) return body_;
    const OpenAiError error = ParseOpenAiError(code_, body_);
    return FailedPrecondition("HTTP {}: {}", error.kind, error.message);
  }

 private:
  std::string body_;  // of the client's thread, until the end
  Mutex mutex_;
  CondVar changed_;
  absl::Status status_ GUARDED_BY(mutex_);
  int code_ GUARDED_BY(mutex_) = 0;
  bool ended_ GUARDED_BY(mutex_) = false;
};

class OpenAiCall final : public LoadCall {
 public:
  OpenAiCall(HttpLoadClient& client, HttpCall call, LoadRecord record)
      : client_(client), call_(std::move(call)), record_(std::move(record)) {}

  void Start(TimePoint planned, OnDone done) override {
    record_.planned = planned;
    record_.sent = record_.end = planned;  // where it never gets that far
    client_.Send(std::move(call_),
                 std::make_shared<AnswerExchange>(std::move(record_), std::move(done)));
  }

 private:
  HttpLoadClient& client_;
  HttpCall call_;
  LoadRecord record_;
};

class OpenAiTarget final : public LoadTarget {
 public:
  OpenAiTarget(const TargetOptions& options, std::unique_ptr<HttpLoadClient> client)
      : options_(options), client_(std::move(client)) {}

  std::shared_ptr<LoadCall> Prepare(const LoadRequest& request) override {
    const std::string path = options_.chat ? "/v1/chat/completions" : "/v1/completions";
    return std::make_shared<OpenAiCall>(*client_, CallOf(path, BodyOf(request), options_.timeout),
                                        LoadRecord{.asked_prompt_tokens = request.prompt_tokens(),
                                                   .asked_output_tokens = request.output_tokens});
  }

  void CancelAll() override { client_->CancelAll(); }
  void SetModel(const std::string& model) override { model_ = model; }

  absl::StatusOr<std::string> FindModel() override {
    const auto exchange = std::make_shared<WholeExchange>();
    client_->Send(CallOf("/v1/models", "", kModelsTimeout), exchange);
    absl::StatusOr<std::string> body = exchange->Await();
    if (!body.ok()) return Annotate(body.status(), "GET /v1/models");
    const auto json = nlohmann::json::parse(*body, nullptr, /*allow_exceptions=*/false);
    std::vector<std::string> models;
    if (json.is_object() && json.contains("data") && json["data"].is_array()) {
      for (const auto& model : json["data"]) {
        if (model.is_object() && model.contains("id") && model["id"].is_string()) {
          models.push_back(model["id"].get<std::string>());
        }
      }
    }
    return TheOnlyModel(models);
  }

 private:
  HttpCall CallOf(const std::string& path, std::string body, Duration timeout) const {
    HttpCall call{.path = options_.path + path, .body = std::move(body), .timeout = timeout};
    if (!options_.api_key.empty()) {
      call.headers.push_back(fmt::format("Authorization: Bearer {}", options_.api_key));
    }
    if (!call.body.empty()) call.headers.push_back("Content-Type: application/json");
    return call;
  }

  std::string BodyOf(const LoadRequest& request) const {
    nlohmann::json body = {{"model", model_},
                           {"stream", true},
                           {"stream_options", {{"include_usage", true}}},
                           {"temperature", options_.temperature},
                           {"max_tokens", request.output_tokens}};
    if (!options_.openai_only) {
      body["ignore_eos"] = true;
      body["return_token_ids"] = true;
    }
    if (options_.chat) {
      body["messages"] = {{{"role", "user"}, {"content", PromptText(request, options_.alphabet)}}};
    } else if (options_.text) {
      body["prompt"] = PromptText(request, options_.alphabet);
    } else {
      body["prompt"] = PromptIds(request, options_.alphabet);
    }
    return body.dump();
  }

  const TargetOptions options_;
  const std::unique_ptr<HttpLoadClient> client_;
  std::string model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LoadTarget>> ConnectOpenAi(const TargetOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<HttpLoadClient> client,
                   HttpLoadClient::Connect(options.host, options.port));
  return std::make_unique<OpenAiTarget>(options, std::move(client));
}

absl::StatusOr<std::string> TheOnlyModel(const std::vector<std::string>& models) {
  if (models.empty()) return NotFound("the server lists no model: name one with --model");
  if (models.size() == 1) return models.front();
  return FailedPrecondition("the server has {} models, {} and {} among them: choose with --model",
                            models.size(), models[0], models[1]);
}

}  // namespace penstock
