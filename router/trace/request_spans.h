#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/trace_context.h"
#include "proto/otlp.pb.h"
#include "router/metrics/request_metrics.h"
#include "router/metrics/session_timing.h"

namespace penstock {

// Room router/trace: spans of requests for tracing tools that speak OpenTelemetry. It knows the
// figures of finished requests; it may not know workers, placement or how a session runs.

namespace otlp = ::opentelemetry::proto::collector::trace::v1;

// A request that has ended. References are for the duration of a call.
struct EndedRequest {
  Endpoint endpoint;
  std::string_view request_id;
  const TraceContext& trace;  // its span_id is that of the request's span
  const absl::Status& status;
  const SessionTiming& timing;
  uint64_t output_tokens = 0;
  TimePoint end;
};

// A moment on both clocks, with which times of a Clock become times of day.
struct WallMoment {
  TimePoint steady;
  uint64_t unix_nanos = 0;
};
WallMoment MomentNow(const Clock& clock);

// Adds the request's span, of kind server, and below it one for each stage that was measured and
// one for each migration. Attributes have the names of OpenTelemetry's conventions for generative
// AI (https://opentelemetry.io/docs/specs/semconv/gen-ai/), and penstock.* where those have none.
// They say nothing of what was asked or answered.
void AddSpans(const EndedRequest& request, std::string_view model, const WallMoment& moment,
              otlp::ScopeSpans& spans);

}  // namespace penstock
