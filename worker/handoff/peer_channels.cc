#include "worker/handoff/peer_channels.h"

#include <grpcpp/grpcpp.h>

namespace penstock {
namespace {

constexpr size_t kChannelsMax = 256;

std::shared_ptr<grpc::Channel> Dial(const std::string& endpoint,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 5000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(endpoint, credentials, arguments);
}

}  // namespace

std::shared_ptr<grpc::Channel> PeerChannels::To(const std::string& endpoint) {
  MutexLock lock(mutex_);
  std::shared_ptr<grpc::Channel>& channel = channels_[endpoint];
  if (channel == nullptr) channel = Dial(endpoint, credentials_);
  std::shared_ptr<grpc::Channel> dialled = channel;
  if (channels_.size() > kChannelsMax) {
    std::erase_if(channels_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  return dialled;
}

}  // namespace penstock
