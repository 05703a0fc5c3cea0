#pragma once

#include "base/lifecycle.h"
#include "proto/config.pb.h"
#include "proto/worker.pb.h"

namespace penstock {

// What the mains of both workers do: start, say where, serve until a signal, drain, stop.
ExitCode RunWorker(v1::WorkerState::Role first, const v1::WorkerConfig& config);

}  // namespace penstock
