#pragma once

#include <string>
#include <string_view>

#include "proto/worker.pb.h"
#include "worker/engine/model_host.h"

namespace penstock {

// What a worker says of itself in every WorkerState and does not change while it runs.
v1::WorkerState DescribeWorker(const ModelHost& host);

// `asked`, or "decode-8092" after the role and the port it listens on.
std::string WorkerId(const std::string& asked, const std::string& role,
                     const std::string& endpoint);

// The pool's part of a WorkerState.
void SetPoolLoad(const BlockPool& pool, v1::WorkerState* state);

}  // namespace penstock
