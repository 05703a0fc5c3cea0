#include "lab/load/grpc_target.h"

#include <grpcpp/grpcpp.h>

#include <set>

#include "base/clock.h"
#include "base/mutex.h"
#include "proto/inference.grpc.pb.h"

namespace penstock {
namespace {

constexpr auto kModelsTimeout = std::chrono::seconds(10);

std::string NameOf(grpc::StatusCode code) {
  return "grpc " + absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

// The calls that run. Any thread.
class OpenCalls {
 public:
  // False once they are cancelled.
  bool Add(grpc::ClientContext* context) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!cancelled_) contexts_.insert(context);
    return !cancelled_;
  }
  void Remove(grpc::ClientContext* context) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    contexts_.erase(context);
  }
  void CancelAll() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    cancelled_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }
  bool cancelled() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return cancelled_;
  }

 private:
  Mutex mutex_;
  std::set<grpc::ClientContext*> contexts_ GUARDED_BY(mutex_);
  bool cancelled_ GUARDED_BY(mutex_) = false;
};

class GrpcCall final : public LoadCall,
                       public grpc::ClientReadReactor<v1::GenerateResponse>,
                       public std::enable_shared_from_this<GrpcCall> {
 public:
  GrpcCall(v1::Inference::Stub& stub, OpenCalls& open, const TargetOptions& options,
           v1::GenerateRequest request, LoadRecord record)
      : stub_(stub), open_(open), request_(std::move(request)), record_(std::move(record)) {
    if (!options.api_key.empty()) {
      context_.AddMetadata("authorization", "Bearer " + options.api_key);
    }
    timeout_ = options.timeout;
  }

  void Start(TimePoint planned, LoadCall::OnDone done) override {
    record_.planned = planned;
    done_ = std::move(done);
    self_ = shared_from_this();  // until OnDone
    context_.set_deadline(std::chrono::system_clock::now() + timeout_);
    if (!open_.Add(&context_)) context_.TryCancel();
    record_.sent = SteadyClock().Now();
    stub_.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_chunk()) {
      const auto tokens = static_cast<uint32_t>(response_.chunk().token_ids_size());
      if (tokens > 0) record_.OnTokens(SteadyClock().Now(), tokens);
    } else if (response_.final().has_usage()) {
      const v1::Usage& usage = response_.final().usage();
      record_.has_usage = true;
      record_.prompt_tokens = usage.prompt_tokens();
      record_.cached_tokens = usage.cached_tokens();
      record_.output_tokens = usage.completion_tokens();
      const bool length = response_.final().finish_reason() == v1::LENGTH;
      record_.finish_reason = length ? "length" : "stop";
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    open_.Remove(&context_);
    record_.end = SteadyClock().Now();
    if (!record_.has_usage) {
      record_.prompt_tokens = record_.asked_prompt_tokens;
      record_.output_tokens = record_.counted_tokens;
    }
    if (!status.ok()) {
      const bool ours = status.error_code() == grpc::StatusCode::CANCELLED && open_.cancelled();
      if (!ours) record_.Fail(NameOf(status.error_code()), status.error_message());
    } else if (record_.counted_tokens == 0) {
      record_.Fail("empty answer", "the stream held no token");
    } else if (!record_.has_usage) {
      record_.Fail("stream cut", "the stream ended without usage");
    } else {
      record_.result = LoadResult::kGood;
    }
    const auto self = std::move(self_);
    done_(std::move(record_));
  }

 private:
  v1::Inference::Stub& stub_;
  OpenCalls& open_;
  const v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  grpc::ClientContext context_;
  Duration timeout_{};
  LoadRecord record_;
  LoadCall::OnDone done_;
  std::shared_ptr<GrpcCall> self_;
};

class GrpcTarget final : public LoadTarget {
 public:
  GrpcTarget(const TargetOptions& options, std::vector<std::shared_ptr<grpc::Channel>> channels)
      : options_(options), channels_(std::move(channels)) {
    for (const auto& channel : channels_) stubs_.push_back(v1::Inference::NewStub(channel));
  }

  std::shared_ptr<LoadCall> Prepare(const LoadRequest& request) override {
    v1::GenerateRequest generate;
    generate.set_model(model_);
    if (options_.chat) {
      v1::Message& message = *generate.mutable_chat()->add_messages();
      message.set_role("user");
      message.add_content()->set_text(PromptText(request, options_.alphabet));
    } else if (options_.text) {
      generate.set_text(PromptText(request, options_.alphabet));
    } else {
      for (const uint32_t id : PromptIds(request, options_.alphabet)) {
        generate.mutable_tokens()->add_ids(id);
      }
    }
    generate.mutable_sampling()->set_temperature(static_cast<float>(options_.temperature));
    generate.mutable_stop()->set_max_tokens(request.output_tokens);
    generate.mutable_stop()->set_ignore_eos(true);
    generate.mutable_output()->set_return_token_ids(true);
    return std::make_shared<GrpcCall>(*stubs_[next_++ % stubs_.size()], open_, options_,
                                      std::move(generate),
                                      LoadRecord{.asked_prompt_tokens = request.prompt_tokens(),
                                                 .asked_output_tokens = request.output_tokens});
  }

  void CancelAll() override { open_.CancelAll(); }
  void SetModel(const std::string& model) override { model_ = model; }

  // Every channel connected before the first request is due.
  absl::Status Connect() {
    for (const auto& channel : channels_) {
      if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(5))) {
        return Unavailable("nobody answers at {}:{}", options_.host, options_.port);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> FindModel() override {
    grpc::ClientContext context;
    if (!options_.api_key.empty()) {
      context.AddMetadata("authorization", "Bearer " + options_.api_key);
    }
    context.set_deadline(std::chrono::system_clock::now() + kModelsTimeout);
    v1::ListModelsResponse response;
    const grpc::Status status = stubs_.front()->ListModels(&context, {}, &response);
    if (!status.ok()) {
      return FailedPrecondition("ListModels: {}: {}", NameOf(status.error_code()),
                                status.error_message());
    }
    std::vector<std::string> models;
    for (const v1::Model& model : response.models()) models.push_back(model.id());
    return TheOnlyModel(models);
  }

 private:
  const TargetOptions options_;
  const std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  OpenCalls open_;
  std::string model_;
  size_t next_ = 0;
};

}  // namespace

grpc::ChannelArguments LoadChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  return arguments;
}

absl::StatusOr<std::unique_ptr<LoadTarget>> ConnectGrpc(
    const TargetOptions& options, std::vector<std::shared_ptr<grpc::Channel>> channels) {
  auto target = std::make_unique<GrpcTarget>(options, std::move(channels));
  RETURN_IF_ERROR(target->Connect());
  return target;
}

}  // namespace penstock
