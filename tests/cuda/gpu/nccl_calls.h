#pragma once

#include <string>

#include "kvstore/wire/nccl/nccl_abi.h"

namespace penstock::cuda {

// The library's functions; `path` as dlopen takes it. False: it is not there, and why.
bool LoadNccl(const char* path, nccl::Functions& calls, std::string& why);
// Waits until `comm` is through with what it began with `result`. False: it failed, or takes
// forever.
bool SettleNccl(const nccl::Functions& calls, nccl::Comm* comm, nccl::Result result);
// Waits until a stream has come to where `event` was recorded. False as above.
bool AwaitEvent(void* event);

}  // namespace penstock::cuda
