#pragma once

// What we call of NCCL, in declarations of our own, so that neither building nor starting needs it:
// the library is found at run time (nccl_library.h). Checked by tests/contract/nccl_abi_test.cc
// against NVIDIA's nccl.h where there is one (2.28.9 was), and by reading the headers of 2.18 to
// 2.30, which only ever add fields to the end of the configuration.

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

// By value in calls, as ncclUniqueId is.
struct UniqueId {
  char internal[128];
};

// ncclConfig_t of 2.18. A library of a later version sees `size` and `version` and takes its own
// defaults for what came after.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = INT_MIN;  // INT_MIN: NCCL's default, of each of these
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// A cudaStream_t is the void* of TransferDevice.
struct Functions {
  Result (*get_version)(int*);
  Result (*get_unique_id)(UniqueId*);
  Result (*comm_init_rank_config)(Comm**, int ranks, UniqueId, int rank, Config*);
  Result (*comm_get_async_error)(Comm*, Result*);
  Result (*comm_finalize)(Comm*);
  Result (*comm_destroy)(Comm*);
  Result (*comm_abort)(Comm*);
  Result (*comm_revoke)(Comm*, int flags);  // from 2.28.7 on; null before
  Result (*group_start)();
  Result (*group_end)();
  Result (*send)(const void*, size_t count, int type, int peer, Comm*, void* stream);
  Result (*recv)(void*, size_t count, int type, int peer, Comm*, void* stream);
  Result (*all_gather)(const void*, void*, size_t count, int type, Comm*, void* stream);
  const char* (*get_error_string)(Result);
  const char* (*get_last_error)(Comm*);
};

// visit(name, function, needed) for each of them.
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
