#pragma once

#include "base/lifecycle.h"
#include "proto/config.pb.h"
#include "proto/worker.pb.h"

namespace penstock {

// The body of both main functions: start, write the ready file, serve until a signal, drain, stop.
ExitCode RunWorker(v1::WorkerState::Role first, const v1::WorkerConfig& config);

}  // namespace penstock
