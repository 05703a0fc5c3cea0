#pragma once

#include <string>
#include <string_view>

#include "proto/worker.pb.h"
#include "worker/model/model_host.h"

namespace penstock {

// The constant part of a worker's WorkerState.
v1::WorkerState DescribeWorker(const ModelHost& host);

// `asked`, or if that is empty the role and the port of `endpoint`, as in "decode-8092".
std::string WorkerId(const std::string& asked, const std::string& role,
                     const std::string& endpoint);

// The pool's part of a WorkerState.
void SetPoolLoad(const BlockPool& pool, v1::WorkerState* state);

}  // namespace penstock
