#pragma once

#include "base/log/log.h"
#include "kvstore/handoff/kv_sender.h"
#include "proto/worker.pb.h"

namespace penstock {

// The message that tells a router about a committed handoff.
v1::HandoffDone HandoffDoneOf(const KvSendStats& stats);

// The request's log line about the same handoff.
void LogHandedOff(const RequestTag& tag, const KvSendStats& stats);

}  // namespace penstock
