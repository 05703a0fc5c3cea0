#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/string_ref.h>

#include <map>

#include "base/trace_context.h"

namespace penstock {

// What a caller's metadata say of its trace; no trace_id where that is nothing.
using CallerMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;
TraceContext TraceOf(const CallerMetadata& metadata);

// Before the call.
void AddTrace(const TraceContext& trace, grpc::ClientContext& context);

}  // namespace penstock
