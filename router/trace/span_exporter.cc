#include "router/trace/span_exporter.h"

#include <absl/strings/match.h>
#include <absl/strings/strip.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <utility>

#include "base/lifecycle.h"
#include "base/log/log.h"
#include "base/thread_name.h"

namespace penstock {
namespace {

constexpr int kBatchSpans = 512;
constexpr int kWaitingSpansMax = 8192;
constexpr Duration kBatchAge = std::chrono::seconds(1);
constexpr std::chrono::seconds kPatience(2);  // with the collector, for one batch

prometheus::Counter& Dropped(MetricsRegistry& metrics, const std::string& reason) {
  return metrics.Counter("penstock_trace_spans_dropped_total",
                         "Spans that the collector of --otlp_endpoint did not get, by reason.",
                         {{"reason", reason}});
}

void Put(otlp::Resource& resource, const char* key, const std::string& value) {
  otlp::KeyValue& attribute = *resource.add_attributes();
  attribute.set_key(key);
  attribute.mutable_value()->set_string_value(value);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> ChannelTo(const std::string& endpoint) {
  absl::string_view address = endpoint;
  const bool tls = absl::ConsumePrefix(&address, "https://");
  if (!tls) absl::ConsumePrefix(&address, "http://");
  if (const auto parsed = ParseHostPort(std::string(address)); !parsed.ok()) {
    return Annotate(parsed.status(), "otlp_endpoint");
  }
  return grpc::CreateChannel(std::string(address),
                             tls ? grpc::SslCredentials({}) : grpc::InsecureChannelCredentials());
}

}  // namespace

SpanMetrics::SpanMetrics(MetricsRegistry& registry)
    : exported(registry.Counter("penstock_trace_spans_exported_total",
                                "Spans that the collector of --otlp_endpoint has taken.")),
      queue_full(Dropped(registry, "queue_full")),
      not_taken(Dropped(registry, "not_taken")) {}

absl::StatusOr<std::unique_ptr<SpanExporter>> SpanExporter::Start(SpanExporterOptions options,
                                                                  const Clock& clock,
                                                                  SpanMetrics& metrics) {
  ASSIGN_OR_RETURN(const auto channel, ChannelTo(options.endpoint));
  return std::unique_ptr<SpanExporter>(
      new SpanExporter(std::move(options), channel, clock, metrics));
}

SpanExporter::SpanExporter(SpanExporterOptions options,
                           const std::shared_ptr<grpc::Channel>& channel, const Clock& clock,
                           SpanMetrics& metrics)
    : options_(std::move(options)),
      clock_(clock),
      stub_(otlp::TraceService::NewStub(channel)),
      metrics_(metrics),
      thread_([this] { Loop(); }) {}

SpanExporter::~SpanExporter() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

bool SpanExporter::IsSampled(const TraceContext& trace) const {
  if (!trace.parent_id.empty()) return (trace.flags & kTraceSampled) != 0;
  // The last digits are random; all routers decide alike.
  const uint64_t random = std::stoull(trace.trace_id.substr(16), nullptr, 16);
  return random % 100 < options_.sampled_percent;
}

void SpanExporter::Export(const EndedRequest& request) {
  if (!IsSampled(request.trace)) return;
  otlp::ScopeSpans spans;
  AddSpans(request, options_.model, MomentNow(clock_), spans);
  MutexLock lock(mutex_);
  if (waiting_.spans_size() + spans.spans_size() > kWaitingSpansMax) {
    metrics_.queue_full.Increment(spans.spans_size());
    return;
  }
  for (otlp::Span& span : *spans.mutable_spans()) *waiting_.add_spans() = std::move(span);
  if (waiting_.spans_size() >= kBatchSpans) changed_.NotifyAll();
}

void SpanExporter::Loop() {
  NameThisThread("spans");
  for (otlp::ScopeSpans batch = NextBatch(); batch.spans_size() > 0; batch = NextBatch()) {
    Send(std::move(batch));
  }
}

otlp::ScopeSpans SpanExporter::NextBatch() {
  MutexLock lock(mutex_);
  do {
    if (!stopping_ && waiting_.spans_size() < kBatchSpans) changed_.WaitFor(mutex_, kBatchAge);
  } while (!stopping_ && waiting_.spans_size() == 0);
  return std::exchange(waiting_, {});
}

void SpanExporter::Send(otlp::ScopeSpans batch) {
  const int count = batch.spans_size();
  batch.mutable_scope()->set_name("penstock");
  batch.mutable_scope()->set_version(options_.version);
  otlp::ExportTraceServiceRequest request;
  otlp::ResourceSpans& of_router = *request.add_resource_spans();
  Put(*of_router.mutable_resource(), "service.name", "penstock-router");
  Put(*of_router.mutable_resource(), "service.version", options_.version);
  *of_router.add_scope_spans() = std::move(batch);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  otlp::ExportTraceServiceResponse answer;
  const grpc::Status status = stub_->Export(&context, request, &answer);
  const int64_t rejected =
      status.ok() ? std::clamp<int64_t>(answer.partial_success().rejected_spans(), 0, count)
                  : count;
  metrics_.exported.Increment(static_cast<double>(count - rejected));
  if (rejected == 0) {
    failing_ = false;
    return;
  }
  metrics_.not_taken.Increment(static_cast<double>(rejected));
  if (std::exchange(failing_, true)) return;  // said once, until the collector takes spans again
  LogWarning("spans_not_taken", "{} of {} spans: {}", rejected, count,
             status.ok() ? answer.partial_success().error_message() : status.error_message());
}

}  // namespace penstock
