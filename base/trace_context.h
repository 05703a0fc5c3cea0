#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// The trace of a request by W3C Trace Context (https://www.w3.org/TR/trace-context/), from the
// headers `traceparent` and `tracestate`. It is for logs and tracing tools only: Penstock uses no
// value that a client sends here as an identifier.
struct TraceContext {
  std::string trace_id;        // 32 lower-case hex digits, not all 0; empty: no trace
  std::string span_id;         // 16 lower-case hex digits; the span of the caller
  std::string parent_id = {};  // after ContinueTrace: the span of the caller; empty: it has none
  uint8_t flags = 0;           // bits of kTraceFlags
  std::string state;           // other vendors' entries, forwarded; may be empty
};
inline constexpr uint8_t kTraceSampled = 1;
inline constexpr uint8_t kTraceRandomId = 2;
inline constexpr uint8_t kTraceFlags = kTraceSampled | kTraceRandomId;

// The header values as received, one entry for each occurrence.
struct TraceHeaders {
  std::vector<std::string_view> parents;
  std::vector<std::string_view> states;
};

// Parses the headers. The result has no trace_id unless there is exactly one traceparent and it is
// well formed; tracestate is then ignored too. A malformed tracestate is dropped. If tracestate is
// longer than kTraceStateMax, members longer than 128 bytes are dropped first, then the last
// members.
inline constexpr size_t kTraceStateMax = 512;
TraceContext ParseTrace(const TraceHeaders& headers);

// Continues the `caller`'s trace with a new span, or starts a new trace. `random` must come from a
// good source.
struct TraceRandom {
  uint64_t trace_high = 0;
  uint64_t trace_low = 0;
  uint64_t span = 0;
};
TraceContext ContinueTrace(TraceContext caller, const TraceRandom& random);

// Formats "00-TRACE-SPAN-FLAGS".
std::string TraceParent(const TraceContext& trace);

}  // namespace penstock
