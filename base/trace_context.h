#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// Which trace a request belongs to, by W3C Trace Context (https://www.w3.org/TR/trace-context/):
// what `traceparent` and `tracestate` say. It is for logs and other people's tools: whatever a
// client sends here names nothing in Penstock.
struct TraceContext {
  std::string trace_id;  // 32 lower-case hex digits, not all 0; empty: there is none
  std::string span_id;   // 16 such; of whoever calls next
  uint8_t flags = 0;     // of kTraceFlags
  std::string state;     // of other vendors, passed on; may be empty
};
inline constexpr uint8_t kTraceSampled = 1;
inline constexpr uint8_t kTraceRandomId = 2;
inline constexpr uint8_t kTraceFlags = kTraceSampled | kTraceRandomId;

// The headers as they came, each as often as it came.
struct TraceHeaders {
  std::vector<std::string_view> parents;
  std::vector<std::string_view> states;
};

// What the headers say; no trace_id where there is not exactly one well-formed traceparent: then
// tracestate counts for nothing either. A tracestate that is malformed is left out; of one that is
// longer than kTraceStateMax, members beyond 128 bytes go first, and then the last ones.
inline constexpr size_t kTraceStateMax = 512;
TraceContext ParseTrace(const TraceHeaders& headers);

// `caller`'s trace with a span of our own, or a new trace. `random`: 3 words from a good source.
struct TraceRandom {
  uint64_t trace_high = 0;
  uint64_t trace_low = 0;
  uint64_t span = 0;
};
TraceContext ContinueTrace(TraceContext caller, const TraceRandom& random);

// "00-TRACE-SPAN-FLAGS"
std::string TraceParent(const TraceContext& trace);

}  // namespace penstock
