#pragma once

#include <memory>
#include <string>

#include "base/trace_context.h"
#include "kvstore/handoff/handoff_channel.h"
#include "kvstore/handoff/kv_sender.h"

namespace grpc {
class ChannelCredentials;
}

namespace penstock {

// Opens the gRPC control streams of handoffs to the workers that receive KV. Any thread.
class HandoffClient {
 public:
  // `sender` receives the streams' messages and outlives the client.
  HandoffClient(KvSender& sender, std::shared_ptr<grpc::ChannelCredentials> credentials);
  ~HandoffClient();  // Cancels the open streams and waits for their end.

  // Opens the stream of the handoff `key` to the worker at `endpoint` (host:port), for a request of
  // that trace. Errors reach the sender by OnControlClosed.
  std::shared_ptr<HandoffSenderChannel> Open(const HandoffKey& key, const std::string& endpoint,
                                             const TraceContext& trace);

 private:
  class Streams;
  std::shared_ptr<Streams> streams_;
};

}  // namespace penstock
