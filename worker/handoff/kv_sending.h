#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/log/log.h"
#include "base/metrics/metrics.h"
#include "base/status.h"
#include "kvstore/handoff/kv_sender.h"
#include "kvstore/wire/wire.h"
#include "proto/worker.pb.h"
#include "worker/engine/model_host.h"
#include "worker/handoff/handoff_client.h"
#include "worker/handoff/lossy_kv.h"
#include "worker/handoff/transfer_metrics.h"

namespace penstock {

struct KvSendingOptions {
  std::string wire_codec = "auto";  // "auto", or the name of a codec
  Duration lease = std::chrono::seconds(3);
  std::function<void(std::string_view step)> on_step = {};  // see KvSenderOptions
  const LossyKv* lossy = nullptr;  // outlives the sender; null: none is ever asked for
};

// What a worker hands KV to others with: the sender, its control streams and its figures. Made
// after the wire and gone before it.
class KvSending {
 public:
  struct Parts {  // all outlive it
    ModelHost& host;
    const Clock& clock;
    Wire& wire;
    MetricsRegistry& metrics;
    std::shared_ptr<grpc::ChannelCredentials> credentials;  // of control streams
    SlabMemory* device_slabs = nullptr;                     // see KvSenderOptions
  };

  // Measures the codecs' rates where `wire_codec` is "auto", then starts the sender's thread.
  // INVALID_ARGUMENT for a codec that there is not.
  static absl::StatusOr<std::unique_ptr<KvSending>> Start(KvSendingOptions options,
                                                          const Parts& parts);

  KvSender& sender() { return sender_; }
  const KvSender& sender() const { return sender_; }
  HandoffClient& handoffs() { return handoffs_; }
  TransferMetrics& transfers() { return transfers_; }

 private:
  KvSending(KvSenderOptions options, const Parts& parts);

  TransferMetrics transfers_;
  KvSender sender_;
  HandoffClient handoffs_;
};

// What the router is told of a handoff that was committed.
v1::HandoffDone HandoffDoneOf(const KvSendStats& stats);

// The line of that request, with the same figures.
void LogHandedOff(const RequestTag& tag, const KvSendStats& stats);

}  // namespace penstock
