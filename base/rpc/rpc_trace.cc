#include "base/rpc/rpc_trace.h"

namespace penstock {
namespace {

constexpr char kParent[] = "traceparent";
constexpr char kState[] = "tracestate";

std::vector<std::string_view> AllOf(const CallerMetadata& metadata, const char* key) {
  std::vector<std::string_view> values;
  const auto [begin, end] = metadata.equal_range(key);
  for (auto it = begin; it != end; ++it) values.emplace_back(it->second.data(), it->second.size());
  return values;
}

}  // namespace

TraceContext TraceOf(const CallerMetadata& metadata) {
  return ParseTrace({.parents = AllOf(metadata, kParent), .states = AllOf(metadata, kState)});
}

void AddTrace(const TraceContext& trace, grpc::ClientContext& context) {
  if (trace.trace_id.empty()) return;
  context.AddMetadata(kParent, TraceParent(trace));
  if (!trace.state.empty()) context.AddMetadata(kState, trace.state);
}

}  // namespace penstock
