#pragma once

#include <memory>
#include <string>

#include "http/event_loop.h"
#include "http/protocol.h"
#include "http/socket.h"

namespace penstock {

// One client's connection: moves bytes between its socket and its protocol. Holds at most one
// buffer of each direction: while the client does not read, nothing more is produced for it, and
// while its protocol wants no input, nothing more is read. The loop's thread.
class Connection final : public EventLoop::Watcher,
                         public std::enable_shared_from_this<Connection> {
 public:
  struct Args {
    EventLoop& loop;  // outlives it
    EdgeContext& context;
    std::unique_ptr<Socket> socket;
    std::function<void()> on_closed;  // once
  };
  explicit Connection(Args args);
  ~Connection() override;

  // Starts to watch; once, on the loop's thread.
  void Open(std::unique_ptr<Protocol> protocol);
  // Has the protocol produce what it may have now.
  void OnWake();
  void OnReady(uint32_t events) override;
  void OnTick(TimePoint now) override;
  void Close();

 private:
  void ReadSome();
  bool Feed(std::string_view bytes);  // false when closed
  void Pump();
  bool WriteSome();  // false when the socket takes no more for now, or is closed
  void FinishWriting();
  void Drain();
  void UpdateInterest();

  EventLoop& loop_;
  EdgeContext& context_;
  std::unique_ptr<Socket> socket_;
  std::function<void()> on_closed_;
  std::unique_ptr<Protocol> protocol_;
  std::string unread_;  // came with bytes that were wanted
  std::string out_;
  size_t sent_ = 0;  // of out_
  uint32_t interest_ = 0;
  const TimePoint opened_;
  TimePoint progress_;  // when something was last sent, or there was nothing to send
  TimePoint linger_until_ = TimePoint::max();
  size_t drained_ = 0;
  bool blocked_ = false;    // the socket takes no more for now
  bool lingering_ = false;  // all is sent; what still comes is thrown away
  bool closed_ = false;
};

}  // namespace penstock
