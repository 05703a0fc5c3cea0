#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>
#include <vector>

#include "lab/load/target.h"

namespace penstock {

// Streams of one HTTP/2 connection share its window and its thread, so several connections are
// used.
inline constexpr int kLoadChannels = 4;
// With which each of them is one of its own.
grpc::ChannelArguments LoadChannelArguments();

// penstock.v1.Inference over gRPC. UNAVAILABLE when nobody answers on one of `channels`.
absl::StatusOr<std::unique_ptr<LoadTarget>> ConnectGrpc(
    const TargetOptions& options, std::vector<std::shared_ptr<grpc::Channel>> channels);

}  // namespace penstock
