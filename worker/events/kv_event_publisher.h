#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/net/reserved_acceptor.h"
#include "http/event_loop.h"
#include "worker/events/kv_event.h"
#include "worker/events/kv_event_connection.h"
#include "worker/events/kv_event_log.h"
#include "worker/events/kv_event_metrics.h"
#include "worker/events/kv_event_source.h"

namespace penstock {

// This room (worker/events) tells indexes outside the cluster which blocks a worker has cached, in
// the form of vLLM's KV events. It knows block events, tokens and ZeroMQ's protocol, but no engine,
// no role and no router; nothing in the worker waits for it.
//
// Publishes on one port: a SUB socket gets every batch as the message (topic, sequence number,
// payload), see EncodeKvEvents; a REQ or DEALER socket sends a sequence number as 8 bytes,
// big-endian, and gets the kept batches from that number on, each as (number, payload), and at the
// end (-1, nothing). Numbers count from 0 at each start, and the first batch begins with
// KvBlocksCleared.
//
// Its own thread polls the cache's events every 10 ms. Strangers cost at most `kConnectionsMax`
// descriptors.
class KvEventPublisher {
 public:
  static constexpr size_t kConnectionsMax = 64;

  struct Options {
    std::string listen;  // host:port; port 0 selects a free one
    std::string topic;
    KvEventForm form = KvEventForm::kArray;
    int32_t block_tokens = 16;
  };

  // What `source` uses, and `metrics`, outlive the publisher. Returns the errors of ListenOn.
  static absl::StatusOr<std::unique_ptr<KvEventPublisher>> Start(
      Options options, std::unique_ptr<KvEventSource> source, KvEventMetrics& metrics);
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // host:port with the port that was bound.
  const std::string& endpoint() const { return endpoint_; }

 private:
  class Listener;
  class Pulse;

  KvEventPublisher(Options options, std::unique_ptr<KvEventSource> source, KvEventMetrics& metrics);
  absl::Status Open();
  // On the loop's thread from here on.
  void PublishNews();
  void PublishBatch(std::span<const KvEvent> events);
  void TakeConnection(int fd);
  bool MakeRoom();

  const Options options_;
  const std::unique_ptr<KvEventSource> source_;
  KvEventMetrics& metrics_;
  std::string endpoint_;
  KvEventLog log_;
  std::vector<std::shared_ptr<KvEventConnection>> connections_;  // the oldest first
  std::shared_ptr<EventLoop> loop_;
};

}  // namespace penstock
