#pragma once

#include <functional>
#include <memory>

#include "base/net/reserved_acceptor.h"
#include "base/status.h"
#include "kvstore/wire/loop.h"
#include "kvstore/wire/net/ticker.h"

namespace penstock {

// Accepts connections of a listening socket. If the process has no free descriptor, connections are
// closed at once (ReservedAcceptor); if even that is impossible, the listener pauses for 100 ms. On
// the loop's thread.
class WireListener {
 public:
  // Takes ownership of `fd`, and `on_accepted` that of its argument, which is non-blocking.
  static absl::StatusOr<std::unique_ptr<WireListener>> Create(WireLoop& loop, int fd,
                                                              std::function<void(int)> on_accepted);
  ~WireListener();
  WireListener(const WireListener&) = delete;
  WireListener& operator=(const WireListener&) = delete;

 private:
  WireListener(WireLoop& loop, int fd, std::function<void(int)> on_accepted);
  void Accept();
  void Pause();
  void Resume();

  WireLoop& loop_;
  const int fd_;
  const std::function<void(int)> on_accepted_;
  ReservedAcceptor acceptor_;
  std::unique_ptr<WireTicker> pause_;  // runs while the listener is paused
};

}  // namespace penstock
