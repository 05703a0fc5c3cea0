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

// Opens handoff control streams to the workers that take KV, over gRPC. Any thread.
class HandoffClient {
 public:
  // `sender` gets what the streams bring, and outlives the client.
  HandoffClient(KvSender& sender, std::shared_ptr<grpc::ChannelCredentials> credentials);
  ~HandoffClient();  // Cancels the open streams and waits for their end.

  // The stream of the handoff `key` to the worker at `endpoint` (host:port), on behalf of a request
  // of that trace. What goes wrong, the sender learns by OnControlClosed.
  std::shared_ptr<HandoffSenderChannel> Open(const HandoffKey& key, const std::string& endpoint,
                                             const TraceContext& trace);

 private:
  class Streams;
  std::shared_ptr<Streams> streams_;
};

}  // namespace penstock
