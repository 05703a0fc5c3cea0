#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/metrics/metrics.h"
#include "base/mutex.h"
#include "proto/otlp.grpc.pb.h"
#include "router/trace/request_spans.h"

namespace penstock {

struct SpanExporterOptions {
  std::string endpoint;  // [http://|https://]host:port of an OTLP/gRPC collector
  // The share of requests without a client's trace whose spans are exported. A client decides about
  // its own trace, by the flag `sampled` of W3C Trace Context.
  uint32_t sampled_percent = 100;
  std::string model;    // as clients name it
  std::string version;  // of this process
};

struct SpanMetrics {
  explicit SpanMetrics(MetricsRegistry& registry);
  prometheus::Counter& exported;
  prometheus::Counter& queue_full;  // dropped
  prometheus::Counter& not_taken;   // dropped
};

// Sends the spans of requests that have ended to a collector, in batches, from a thread of its own.
// A collector that is slow or gone delays nothing: spans that find the queue full, or that the
// collector does not take, are dropped and counted. References outlive it.
class SpanExporter {
 public:
  // INVALID_ARGUMENT names the field.
  static absl::StatusOr<std::unique_ptr<SpanExporter>> Start(SpanExporterOptions options,
                                                             const Clock& clock,
                                                             SpanMetrics& metrics);
  // Sends what waits, for at most four seconds.
  ~SpanExporter();
  SpanExporter(const SpanExporter&) = delete;
  SpanExporter& operator=(const SpanExporter&) = delete;

  // Queues the request's spans, if its trace is sampled. Any thread; never blocks on the network.
  void Export(const EndedRequest& request) EXCLUDES(mutex_);
  bool IsSampled(const TraceContext& trace) const;

 private:
  SpanExporter(SpanExporterOptions options, const std::shared_ptr<grpc::Channel>& channel,
               const Clock& clock, SpanMetrics& metrics);
  void Loop() EXCLUDES(mutex_);
  // The next batch, once it is full or old enough; empty: stopping, and nothing is left.
  otlp::ScopeSpans NextBatch() EXCLUDES(mutex_);
  void Send(otlp::ScopeSpans batch) EXCLUDES(mutex_);

  const SpanExporterOptions options_;
  const Clock& clock_;
  const std::unique_ptr<otlp::TraceService::Stub> stub_;
  SpanMetrics& metrics_;
  bool failing_ = false;  // of the thread: the last batch was not taken

  Mutex mutex_;
  CondVar changed_;
  otlp::ScopeSpans waiting_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace penstock
