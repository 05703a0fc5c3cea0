#include "router/picker/picker_server.h"

#include <grpcpp/grpcpp.h>

#include "base/mutex.h"
#include "base/rpc/timer.h"
#include "base/thread_name.h"
#include "proto/ext_proc.grpc.pb.h"

namespace penstock {
namespace {

constexpr char kServiceName[] = "envoy.service.ext_proc.v3.ExternalProcessor";
constexpr int kThreads = 2;

using Reactor = grpc::ServerBidiReactor<ext_proc::ProcessingRequest, ext_proc::ProcessingResponse>;

}  // namespace

// One stream of a gateway. At any time it does one of these: it reads a message, it writes an
// answer, or a decision is made; so only the timer and gRPC's cancellation run beside it. gRPC
// keeps it alive until OnDone.
class PickerServer::Stream final : public Reactor, public std::enable_shared_from_this<Stream> {
 public:
  Stream(PickerServer& server, grpc::CallbackServerContext& context)
      : server_(server),
        context_(context),
        processing_({.rule = server.rule_,
                     .bodies = server.bodies_,
                     .endpoint = server.options_.endpoint,
                     .limits = server.options_.limits}) {}

  void Begin() {
    self_ = shared_from_this();
    LimitTo(server_.options_.body_wait);
    const uint32_t others = server_.streams_.fetch_add(1);
    server_.metrics_.streams.Increment();
    if (others < server_.options_.streams_max) return StartRead(&incoming_);
    next_ = processing_.Refuse(503, "the endpoint picker has no room for another request");
    Proceed();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(EndOfMessages());
    const absl::StatusOr<Processing::Next> next = processing_.OnMessage(std::move(incoming_));
    if (!next.ok()) return Finish(ToGrpcStatus(next.status()));
    incoming_ = {};
    next_ = *next;
    if (awaits_request_ && !processing_.awaits_request()) {
      awaits_request_ = false;
      LimitTo(server_.options_.stream_max);
    }
    Proceed();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    Proceed();
  }

  void OnCancel() override {}  // what runs ends with an error, and then the stream

  void OnDone() override {
    {
      MutexLock lock(mutex_);
      timer_.Clear();
      done_ = true;
    }
    server_.streams_.fetch_sub(1);
    server_.metrics_.streams.Decrement();
    const std::shared_ptr<Stream> last = std::move(self_);
  }

 private:
  // The gateway has ended the stream, or is gone; gRPC also ends the messages at one that is none.
  grpc::Status EndOfMessages() const {
    if (!processing_.awaits_request()) return grpc::Status::OK;
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "the stream ends before the request, or with bytes that are no ProcessingRequest"};
  }

  // Writes all answers, and then does what the last message asks for.
  void Proceed() {
    if (std::optional<ext_proc::ProcessingResponse> answer = processing_.TakeAnswer()) {
      outgoing_ = *std::move(answer);
      return StartWrite(&outgoing_);
    }
    switch (next_) {
      case Processing::Next::kRead:
        return StartRead(&incoming_);
      case Processing::Next::kDecide:
        return QueueDecision();
      case Processing::Next::kEnd:
        return Finish(grpc::Status::OK);
    }
  }

  void QueueDecision() {
    const TimePoint queued = server_.clock_.Now();
    if (server_.decisions_.TryPush([this, queued] { Decide(queued); })) return;
    next_ = processing_.Refuse(503, "the endpoint picker's queue is full; try again in a second");
    Proceed();
  }

  void Decide(TimePoint queued) {
    const std::optional<HttpResponse> refusal = server_.rule_.Decide(processing_.request());
    const std::chrono::duration<double> took = server_.clock_.Now() - queued;
    server_.metrics_.decision.Observe(took.count());
    next_ = processing_.OnDecided(refusal);
    Proceed();
  }

  // Cancels the stream if it is still open after this time.
  void LimitTo(Duration limit) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    timer_.Set(limit, [weak = weak_from_this()] {
      const std::shared_ptr<Stream> stream = weak.lock();
      if (stream == nullptr) return;
      MutexLock held(stream->mutex_);
      if (!stream->done_) stream->context_.TryCancel();
    });
  }

  PickerServer& server_;
  grpc::CallbackServerContext& context_;  // valid until OnDone
  Processing processing_;
  Processing::Next next_ = Processing::Next::kRead;
  bool awaits_request_ = true;
  ext_proc::ProcessingRequest incoming_;
  ext_proc::ProcessingResponse outgoing_;
  std::shared_ptr<Stream> self_;
  Mutex mutex_;
  Timer timer_ GUARDED_BY(mutex_);
  bool done_ GUARDED_BY(mutex_) = false;
};

class PickerServer::Service final : public ext_proc::ExternalProcessor::CallbackService {
 public:
  explicit Service(PickerServer& server) : server_(server) {}

  Reactor* Process(grpc::CallbackServerContext* context) override {
    auto stream = std::make_shared<Stream>(server_, *context);
    stream->Begin();
    return stream.get();
  }

 private:
  PickerServer& server_;
};

PickerServer::PickerServer(const PickerServerOptions& options, PickRule& rule,
                           PickerMetrics& metrics, const Clock& clock)
    : options_(options),
      rule_(rule),
      metrics_(metrics),
      clock_(clock),
      bodies_(options.body_bytes_max),
      decisions_(options.decisions_queued_max),
      service_(std::make_unique<Service>(*this)) {}

absl::StatusOr<std::unique_ptr<PickerServer>> PickerServer::Start(
    const PickerServerOptions& options, PickRule& rule, PickerMetrics& metrics,
    const Clock& clock) {
  std::unique_ptr<PickerServer> server(new PickerServer(options, rule, metrics, clock));
  for (int i = 0; i < kThreads; ++i) {
    server->threads_.emplace_back([picker = server.get()] { picker->RunDecisions(); });
  }
  auto listening = RpcServer::Start(
      {.listen = options.listen, .services = {server->service_.get()}, .tls = options.tls});
  if (!listening.ok()) return Annotate(listening.status(), "endpoint_picker_listen");
  server->server_ = *std::move(listening);
  server->server_->SetServing("liveness", true);
  server->SetServing(false);
  return server;
}

void PickerServer::RunDecisions() {
  NameThisThread("picker");
  while (true) {
    std::optional<Job> job = decisions_.Pop(std::chrono::hours(1));
    if (job) {
      (*job)();
    } else if (decisions_.closed()) {
      return;
    }
  }
}

// The names of the services are the endpoint picker protocol's.
void PickerServer::SetServing(bool serving) {
  for (const char* service : {"", "readiness", kServiceName}) {
    server_->SetServing(service, serving);
  }
}

void PickerServer::Stop(Duration grace) { server_->Stop(grace); }

PickerServer::~PickerServer() {
  server_.reset();  // Its streams use the threads.
  decisions_.Close();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace penstock
