#pragma once

#include <array>
#include <memory>
#include <string>

#include "kvstore/wire/net/link.h"
#include "kvstore/wire/stream/frame.h"

namespace penstock {

// Makes links over TCP, and finds the link that a connection at the door belongs to. Any number of
// links; on the loop's thread, except for construction.
class StreamLinks : public WireLinks {
 public:
  // Adopts `fd`, a new connection whose first bytes were `hello`, for the link that it names. False
  // when there is no such link that waits for its connection, or the proof is wrong; `fd` is then
  // closed.
  virtual bool Join(int fd, const StreamHello& hello) = 0;
};

std::unique_ptr<StreamLinks> MakeStreamLinks();

}  // namespace penstock
