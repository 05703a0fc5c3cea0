#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/net/socket.h"
#include "http/event_loop.h"
#include "worker/events/kv_event_log.h"
#include "worker/events/kv_event_metrics.h"
#include "worker/events/zmtp_peer.h"

namespace penstock {

// A subscriber or a requester of earlier batches. A peer that reads slowly costs `kQueuedBytesMax`
// at most, and keeps nothing waiting: it misses batches, as with ZeroMQ's high-water mark, and sees
// that by their numbers. On the loop's thread.
class KvEventConnection final : public EventLoop::Watcher {
 public:
  static constexpr size_t kQueuedBytesMax = 8 << 20;
  static constexpr Duration kHandshakeMax = std::chrono::seconds(10);
  // Without progress of output that waits for the peer.
  static constexpr Duration kStallMax = std::chrono::seconds(60);

  // Outlive the connection.
  struct Parts {
    EventLoop& loop;
    const std::string& topic;
    const KvEventLog& log;
    KvEventMetrics& metrics;
  };

  // Takes ownership of the descriptor. `on_closed` is called once, by Close.
  KvEventConnection(const Parts& parts, int fd, std::function<void()> on_closed);
  ~KvEventConnection() override;
  KvEventConnection(const KvEventConnection&) = delete;
  KvEventConnection& operator=(const KvEventConnection&) = delete;

  // Greets the peer. The loop must watch the descriptor.
  void Greet();
  // Sends a batch as a whole message if the peer subscribes to the topic.
  void Publish(const std::shared_ptr<const std::string>& message);
  // The peer has shaken hands.
  bool ready() const { return peer_.kind() != ZmtpPeer::Kind::kUnknown; }
  int fd() const { return socket_->fd(); }
  void OnReady(uint32_t events) override;
  void OnTick(TimePoint now) override;
  void Close();
  void Refuse();  // closes it and counts it

 private:
  struct Replay {
    uint64_t next = 0;
    uint64_t end = 0;  // the first batch after the request, which is not sent
  };

  bool ReadSome();  // false: closed
  bool OnBytes(std::string_view bytes);
  void Queue(std::shared_ptr<const std::string> bytes);
  void Pump();
  bool QueueReply();  // false: no request waits
  bool WriteSome();   // false: closed, or the socket is full
  void SetBlocked(bool blocked);

  const Parts parts_;
  const std::unique_ptr<Socket> socket_;
  const std::function<void()> on_closed_;
  const TimePoint opened_;
  ZmtpPeer peer_;
  std::deque<std::shared_ptr<const std::string>> queue_;
  size_t queued_ = 0;  // bytes in queue_
  size_t sent_ = 0;    // of which the peer has these, all in the front
  std::optional<Replay> replay_;
  TimePoint progress_;
  bool subscriber_ = false;  // counted as such
  bool blocked_ = false;     // the socket is full
  bool closed_ = false;
};

}  // namespace penstock
