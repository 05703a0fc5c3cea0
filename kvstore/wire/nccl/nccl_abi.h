#pragma once

// The part of NCCL's interface that Penstock calls, declared here so that neither the build nor the
// start of a process needs NCCL: the library is loaded at run time (nccl_library.h).
// tests/contract/nccl_abi_test.cc checks the declarations against NVIDIA's nccl.h where it is
// installed (done with 2.28.9). The headers of 2.18 to 2.30 were also compared; later versions only
// append fields to the configuration.

#include <climits>
#include <cstddef>

namespace penstock::nccl {

struct Comm;  // ncclComm
using Result = int;
inline constexpr Result kSuccess = 0;
inline constexpr Result kUnhandledCudaError = 1;
inline constexpr Result kSystemError = 2;
inline constexpr Result kInternalError = 3;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;
inline constexpr int kUint8 = 1;  // ncclDataType_t

// Passed by value, as ncclUniqueId is.
struct UniqueId {
  char internal[128];
};

// ncclConfig_t of 2.18. A later library reads `size` and `version` and uses its defaults for later
// fields.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = INT_MIN;  // INT_MIN: NCCL's default, here and below
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// A stream (cudaStream_t) is the void* of TransferDevice.
struct Functions {
  Result (*get_version)(int*);
  Result (*get_unique_id)(UniqueId*);
  Result (*comm_init_rank_config)(Comm**, int ranks, UniqueId, int rank, Config*);
  Result (*comm_get_async_error)(Comm*, Result*);
  Result (*comm_finalize)(Comm*);
  Result (*comm_destroy)(Comm*);
  Result (*comm_abort)(Comm*);
  Result (*comm_revoke)(Comm*, int flags);  // since 2.28.7; null before
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void*, size_t count, int type, int peer, Comm*, void* stream);
  Result (*recv)(void*, size_t count, int type, int peer, Comm*, void* stream);
  Result (*all_gather)(const void*, void*, size_t count, int type, Comm*, void* stream);
  const char* (*get_error_string)(Result);
  const char* (*get_last_error)(Comm*);
};

// Calls visit(name, function, needed) for each function.
template <class Visit>
void VisitFunctions(Functions& f, const Visit& visit) {
  visit("ncclGetVersion", f.get_version, true);
  visit("ncclGetUniqueId", f.get_unique_id, true);
  visit("ncclCommInitRankConfig", f.comm_init_rank_config, true);
  visit("ncclCommGetAsyncError", f.comm_get_async_error, true);
  visit("ncclCommFinalize", f.comm_finalize, true);
  visit("ncclCommDestroy", f.comm_destroy, true);
  visit("ncclCommAbort", f.comm_abort, true);
  visit("ncclCommRevoke", f.comm_revoke, false);
  visit("ncclGroupStart", f.group_start, true);
  visit("ncclGroupEnd", f.group_end, true);
  visit("ncclSend", f.send, true);
  visit("ncclRecv", f.recv, true);
  visit("ncclAllGather", f.all_gather, true);
  visit("ncclGetErrorString", f.get_error_string, true);
  visit("ncclGetLastError", f.get_last_error, true);
}

}  // namespace penstock::nccl
