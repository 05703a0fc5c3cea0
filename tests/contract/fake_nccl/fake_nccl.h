#pragma once

#include <cstdint>

// What tests ask of the fake NCCL beside its calls, by dlsym. All of one process, any thread.

extern "C" {
// Forgets calls, violations and faults; every communicator must be gone.
using FakeNcclReset = void();
// What goes wrong from now on; 0 undoes it. By name:
//   id_fails, init_fails, init_stalls        the next communicators do not open
//   error_at, stall_at N                     the Nth operation that is enqueued fails, or hangs
//   finalize_stalls, revoke_stalls           closing
//   abort_takes_ms                           an abort blocks for so long
//   version                                  what ncclGetVersion says
using FakeNcclInject = void(const char* fault, int64_t value);
// Calls of e.g. "ncclSend" so far.
using FakeNcclCount = int64_t(const char* call);
// What NCCL would have punished, a line each; empty is good. Valid until the next call.
using FakeNcclViolations = const char*();
// Communicators that were neither destroyed nor aborted.
using FakeNcclOpen = int64_t();
}
