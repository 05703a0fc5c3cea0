#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"

namespace penstock {

// Connections to other workers, kept for later calls. Any thread.
class PeerChannels {
 public:
  explicit PeerChannels(std::shared_ptr<grpc::ChannelCredentials> credentials)
      : credentials_(std::move(credentials)) {}

  // The connection to host:port, which connects when it is first used.
  std::shared_ptr<grpc::Channel> To(const std::string& endpoint) EXCLUDES(mutex_);

 private:
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;  // shared with channels
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ GUARDED_BY(mutex_);
};

}  // namespace penstock
