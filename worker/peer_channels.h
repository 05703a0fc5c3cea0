#pragma once

#include <grpcpp/channel.h>

#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"

namespace penstock {

// Connections to other workers, kept for the next call to the same one. Any thread.
class PeerChannels {
 public:
  // To host:port; connects when it is first used.
  std::shared_ptr<grpc::Channel> To(const std::string& endpoint) EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_ GUARDED_BY(mutex_);
};

}  // namespace penstock
