// Trace headers as bytes, one a line, the first of them traceparent: what is taken is well formed,
// bounded, and the same when it is read again.
#include <cstdint>

#include "base/check.h"
#include "base/trace_context.h"

namespace {

void CheckSame(const penstock::TraceContext& trace) {
  const std::string parent = penstock::TraceParent(trace);
  const penstock::TraceContext again =
      penstock::ParseTrace({.parents = {parent}, .states = {trace.state}});
  PENSTOCK_CHECK(again.trace_id == trace.trace_id && again.span_id == trace.span_id);
  PENSTOCK_CHECK(again.flags == trace.flags && again.state == trace.state);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  penstock::TraceHeaders headers;
  for (size_t end = 0; end != std::string_view::npos; bytes.remove_prefix(end + 1)) {
    end = bytes.find('\n');
    (headers.parents.empty() ? headers.parents : headers.states).push_back(bytes.substr(0, end));
    if (end == std::string_view::npos) break;
  }
  const penstock::TraceContext trace = penstock::ParseTrace(headers);
  if (trace.trace_id.empty()) {
    PENSTOCK_CHECK(trace.state.empty());
    return 0;
  }
  PENSTOCK_CHECK(trace.trace_id.size() == 32 && trace.span_id.size() == 16);
  PENSTOCK_CHECK(trace.state.size() <= penstock::kTraceStateMax);
  CheckSame(trace);
  CheckSame(penstock::ContinueTrace(trace, {.trace_high = size, .trace_low = 0, .span = size}));
  return 0;
}
