#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/string_ref.h>

#include <map>

#include "base/trace_context.h"

namespace penstock {

// Parses the trace in a caller's metadata; no trace_id if there is no valid one.
using CallerMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;
TraceContext TraceOf(const CallerMetadata& metadata);

// Adds the trace to a call's metadata, before the call starts.
void AddTrace(const TraceContext& trace, grpc::ClientContext& context);

}  // namespace penstock
