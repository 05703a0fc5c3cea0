#include "router/trace/request_spans.h"

#include <absl/strings/escaping.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock {
namespace {

// As the conventions name it; a warmed prefix is none of theirs.
std::string_view OperationOf(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChat:
    case Endpoint::kMessages:
    case Endpoint::kResponses:
      return "chat";
    case Endpoint::kEmbeddings:
      return "embeddings";
    case Endpoint::kWarmPrefix:
      return "warm_prefix";
    default:
      return "text_completion";
  }
}

void Put(otlp::Span& span, const char* key, std::string_view value) {
  if (value.empty()) return;
  otlp::KeyValue& attribute = *span.add_attributes();
  attribute.set_key(key);
  attribute.mutable_value()->set_string_value(std::string(value));
}

void Put(otlp::Span& span, const char* key, uint64_t value) {
  otlp::KeyValue& attribute = *span.add_attributes();
  attribute.set_key(key);
  attribute.mutable_value()->set_int_value(static_cast<int64_t>(value));
}

// The id of the request's `number`th child. Ids of spans are random, so one that differs from the
// parent's by a bijection is as good as random.
std::string ChildId(const std::string& parent, uint64_t number) {
  uint64_t id = 0;
  for (const char byte : parent) id = id << 8 | static_cast<uint8_t>(byte);
  id = (id + number) * 0x9e3779b97f4a7c15;
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(id >> (8 * i));
  return bytes;
}

class RequestSpans {
 public:
  RequestSpans(const EndedRequest& request, const WallMoment& moment, otlp::ScopeSpans& spans)
      : request_(request), moment_(moment), spans_(spans) {}

  otlp::Span& AddRequest(std::string_view model) {
    const SessionTiming& timing = request_.timing;
    otlp::Span& span = Add(fmt::format("{} {}", OperationOf(request_.endpoint), model),
                           timing.received(), request_.end);
    span.set_span_id(absl::HexStringToBytes(request_.trace.span_id));
    span.set_parent_span_id(absl::HexStringToBytes(request_.trace.parent_id));
    span.set_kind(otlp::Span::KIND_SERVER);
    Put(span, "gen_ai.operation.name", OperationOf(request_.endpoint));
    Put(span, "gen_ai.request.model", model);
    Put(span, "gen_ai.response.id", request_.request_id);
    Put(span, "gen_ai.usage.input_tokens", timing.prompt_tokens());
    Put(span, "gen_ai.usage.output_tokens", request_.output_tokens);
    Put(span, "penstock.cached_tokens", timing.cached_tokens());
    Put(span, "penstock.recomputed_tokens", timing.recomputed_tokens());
    Put(span, "penstock.accepted_draft_tokens", timing.accepted_guesses());
    Put(span, "penstock.rejected_draft_tokens", timing.rejected_guesses());
    const v1::Timing report = timing.Report();
    Put(span, "penstock.prefill_worker", report.prefill_worker());
    Put(span, "penstock.decode_worker", report.decode_worker());
    Put(span, "penstock.kv_transport", report.transport());
    SetStatus(span);
    return span;
  }

  void AddStage(const std::string& parent, const StageSpan& stage) {
    otlp::Span& span = Add(stage.name, stage.start, stage.end);
    span.set_span_id(ChildId(parent, ++children_));
    span.set_parent_span_id(parent);
    span.set_kind(otlp::Span::KIND_INTERNAL);
    Put(span, "penstock.worker", stage.worker);
    Put(span, "penstock.migration.reason", stage.reason);
  }

 private:
  otlp::Span& Add(std::string name, TimePoint start, TimePoint end) {
    otlp::Span& span = *spans_.add_spans();
    span.set_trace_id(absl::HexStringToBytes(request_.trace.trace_id));
    span.set_trace_state(request_.trace.state);
    span.set_flags(request_.trace.flags);
    span.set_name(std::move(name));
    span.set_start_time_unix_nano(UnixNanos(start));
    span.set_end_time_unix_nano(UnixNanos(std::max(start, end)));
    return span;
  }

  uint64_t UnixNanos(TimePoint time) const {
    return moment_.unix_nanos + static_cast<uint64_t>((time - moment_.steady).count());
  }

  void SetStatus(otlp::Span& span) const {
    if (request_.status.ok()) return;
    Put(span, "error.type", absl::StatusCodeToString(request_.status.code()));
    span.mutable_status()->set_code(otlp::Span::Status::CODE_ERROR);
    span.mutable_status()->set_message(Message(request_.status));
  }

  const EndedRequest& request_;
  const WallMoment& moment_;
  otlp::ScopeSpans& spans_;
  uint64_t children_ = 0;
};

}  // namespace

WallMoment MomentNow(const Clock& clock) {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return {.steady = clock.Now(),
          .unix_nanos = static_cast<uint64_t>(
              std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count())};
}

void AddSpans(const EndedRequest& request, std::string_view model, const WallMoment& moment,
              otlp::ScopeSpans& spans) {
  RequestSpans of_request(request, moment, spans);
  const std::string parent = of_request.AddRequest(model).span_id();
  for (const StageSpan& stage : request.timing.Timeline()) of_request.AddStage(parent, stage);
}

}  // namespace penstock
