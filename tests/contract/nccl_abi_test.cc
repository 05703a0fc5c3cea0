// Our declarations of NCCL against NVIDIA's own. Built only where there is its header.

#include "kvstore/wire/nccl/nccl_abi.h"

#include <gtest/gtest.h>
#include <nccl.h>

#include <cstddef>
#include <type_traits>

namespace penstock::nccl {
namespace {

static_assert(kSuccess == ncclSuccess && kUnhandledCudaError == ncclUnhandledCudaError &&
              kSystemError == ncclSystemError && kInternalError == ncclInternalError &&
              kInvalidArgument == ncclInvalidArgument && kInvalidUsage == ncclInvalidUsage &&
              kRemoteError == ncclRemoteError && kInProgress == ncclInProgress);
static_assert(kUint8 == ncclUint8);
static_assert(sizeof(ncclResult_t) == sizeof(Result) && sizeof(ncclDataType_t) == sizeof(int));
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) &&
              std::is_trivially_copyable_v<UniqueId> == std::is_trivially_copyable_v<ncclUniqueId>);

#define SAME_PLACE(ours, theirs)                                            \
  static_assert(offsetof(Config, ours) == offsetof(ncclConfig_t, theirs) && \
                sizeof(Config::ours) == sizeof(ncclConfig_t::theirs))
SAME_PLACE(size, size);
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(cga_cluster_size, cgaClusterSize);
SAME_PLACE(min_ctas, minCTAs);
SAME_PLACE(max_ctas, maxCTAs);
SAME_PLACE(net_name, netName);
SAME_PLACE(split_share, splitShare);
// Ours ends where theirs may go on.
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));

// The same function but for names of types that have the same form.
template <class T>
struct Ours {
  using type = T;
};
template <>
struct Ours<ncclResult_t> {
  using type = Result;
};
template <>
struct Ours<ncclResult_t*> {
  using type = Result*;
};
template <>
struct Ours<ncclDataType_t> {
  using type = int;
};
template <>
struct Ours<ncclUniqueId> {
  using type = UniqueId;
};
template <>
struct Ours<ncclUniqueId*> {
  using type = UniqueId*;
};
template <>
struct Ours<ncclConfig_t*> {
  using type = Config*;
};
template <>
struct Ours<ncclComm_t> {
  using type = Comm*;
};
template <>
struct Ours<ncclComm_t*> {
  using type = Comm**;
};
template <>
struct Ours<cudaStream_t> {
  using type = void*;
};
template <class R, class... Args>
typename Ours<R>::type (*OursOf(R (*)(Args...)))(typename Ours<Args>::type...);

#define SAME_CALL(ours, theirs) \
  static_assert(std::is_same_v<decltype(Functions::ours), decltype(OursOf(&theirs))>)
SAME_CALL(get_version, ncclGetVersion);
SAME_CALL(get_unique_id, ncclGetUniqueId);
SAME_CALL(comm_init_rank_config, ncclCommInitRankConfig);
SAME_CALL(comm_get_async_error, ncclCommGetAsyncError);
SAME_CALL(comm_finalize, ncclCommFinalize);
SAME_CALL(comm_destroy, ncclCommDestroy);
SAME_CALL(comm_abort, ncclCommAbort);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 7)
SAME_CALL(comm_revoke, ncclCommRevoke);
#endif
SAME_CALL(group_start, ncclGroupStart);
SAME_CALL(group_end, ncclGroupEnd);
SAME_CALL(send, ncclSend);
SAME_CALL(recv, ncclRecv);
SAME_CALL(all_gather, ncclAllGather);
SAME_CALL(get_error_string, ncclGetErrorString);
SAME_CALL(get_last_error, ncclGetLastError);

TEST(NcclAbi, StartsAsNvidiasConfigurationDoes) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_LE(ours.version, theirs.version);
  EXPECT_EQ(ours.blocking, theirs.blocking);
  EXPECT_EQ(ours.cga_cluster_size, theirs.cgaClusterSize);
  EXPECT_EQ(ours.min_ctas, theirs.minCTAs);
  EXPECT_EQ(ours.max_ctas, theirs.maxCTAs);
  EXPECT_EQ(ours.net_name, theirs.netName);
  EXPECT_EQ(ours.split_share, theirs.splitShare);
}

}  // namespace
}  // namespace penstock::nccl
