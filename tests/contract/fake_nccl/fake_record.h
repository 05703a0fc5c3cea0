#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/contract/fake_nccl/fake_comm.h"

// The record of one process's calls, faults and violations. Any thread.

namespace fake_nccl {

// Appends to the file that FAKE_NCCL_LOG names.
void WriteLog(const std::string& line);
void Violate(const std::string& what);
// Counts a call of the function `name`.
void Called(const char* name);
// The value of an injected fault; 0 when it is not injected.
int64_t Fault(const char* name);
// The number of the next operation that is enqueued, from 1.
int64_t NumberOperation();

// Keeps `comm` for the life of the process, so that an address means one communicator.
Comm* Remember(std::unique_ptr<Comm> comm);
// True when `comm` is open. A call on any other communicator would touch freed memory: a violation.
bool Lives(Comm* comm, const char* call);
void Forget(Comm* comm);

}  // namespace fake_nccl
