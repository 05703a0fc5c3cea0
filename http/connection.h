#pragma once

#include <memory>
#include <string>

#include "base/net/socket.h"
#include "http/event_loop.h"
#include "http/protocol.h"

namespace penstock {

// One client's connection: transfers bytes between its socket and its protocol. Holds at most one
// buffer per direction: nothing more is produced while the client does not read, and nothing more
// is read while the protocol wants no input. Runs on the loop's thread; the loop owns it until it
// is closed.
class Connection final : public EventLoop::Watcher,
                         public std::enable_shared_from_this<Connection> {
 public:
  struct Args {
    EventLoop& loop;  // outlives the connection
    EdgeContext& context;
    std::unique_ptr<Socket> socket;
    std::function<void()> on_closed;  // called once
  };
  explicit Connection(Args args);
  ~Connection() override;

  // Starts to watch the socket. Call it once, on the loop's thread. `on_idle` is called with true
  // when the connection begins to wait for its client, and with false when a request is in work.
  void Open(std::unique_ptr<Protocol> protocol, std::function<void(bool idle)> on_idle);
  // Lets the protocol produce new output.
  void OnWake();
  void OnReady(uint32_t events) override;
  void OnTick(TimePoint now) override;
  void Close();
  // Closes the connection unless a request is in work.
  void CloseIfIdle();

 private:
  void ReadSome();
  bool Feed(std::string_view bytes);  // returns false if closed
  void Pump();
  bool WriteSome();  // returns false if the socket is full for now, or closed
  void FinishWriting();
  void Drain();
  void UpdateInterest();
  void ReportIdle();

  EventLoop& loop_;
  EdgeContext& context_;
  std::unique_ptr<Socket> socket_;
  std::function<void(bool)> on_idle_;
  std::function<void()> on_closed_;
  std::unique_ptr<Protocol> protocol_;
  std::string unread_;  // input that the protocol has not taken yet
  std::string out_;
  size_t sent_ = 0;  // bytes of out_ that are sent
  uint32_t interest_ = 0;
  const TimePoint opened_;
  TimePoint progress_;  // last time that bytes were sent or there was nothing to send
  TimePoint linger_until_ = TimePoint::max();
  size_t drained_ = 0;
  bool blocked_ = false;    // the socket is full for now
  bool lingering_ = false;  // all is sent; further input is discarded
  bool idle_ = false;       // reported last
  bool closed_ = false;
};

}  // namespace penstock
