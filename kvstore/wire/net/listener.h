#pragma once

#include <functional>
#include <memory>

#include "base/status.h"
#include "kvstore/wire/loop.h"
#include "kvstore/wire/net/ticker.h"

namespace penstock {

// Accepts connections of a listening socket. When the process has no free descriptors, one that is
// kept in reserve is used to accept and close whoever calls; when even that fails, the listener
// rests. So a listener never runs in circles. On the loop's thread.
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
  bool RefuseOne();
  void Rest();
  void Resume();

  WireLoop& loop_;
  const int fd_;
  const std::function<void(int)> on_accepted_;
  int reserve_;
  std::unique_ptr<WireTicker> rest_;
};

}  // namespace penstock
