#pragma once

#include <cstdint>

// The functions that tests call on the fake NCCL beside NCCL's own, found by dlsym. They concern
// the whole process and may be called on any thread.

extern "C" {
// Forgets calls, violations and faults; every communicator must be gone.
using FakeNcclReset = void();
// Injects a fault by its name, from now on; a value of 0 removes it. FAKE_NCCL_FAULT in the
// environment injects one at the start, as in "error_at=20".
//   id_fails, init_fails, init_stalls        the next communicators do not open
//   error_at, stall_at N                     the Nth operation that is enqueued fails, or hangs
//   finalize_stalls, revoke_stalls           closing
//   abort_stalls                             an abort blocks until it is 0 again
//   version                                  what ncclGetVersion says
using FakeNcclInject = void(const char* fault, int64_t value);
// Calls of e.g. "ncclSend" so far.
using FakeNcclCount = int64_t(const char* call);
// The violations that NCCL would have punished, one per line; empty when there are none. Valid
// until the next call.
using FakeNcclViolations = const char*();
// Communicators that were neither destroyed nor aborted.
using FakeNcclOpen = int64_t();
}
