#pragma once

#include <memory>

#include "proto/handoff.pb.h"

namespace penstock {

// The control stream of one handoff, seen from the side that sends `Message`. An interface: gRPC in
// the workers, a simulated network in tests.
//
// The stream and the handoff end at different times and neither waits for the other, so both hold
// the channel by shared_ptr. Send and Close are called on any thread, one at a time and without
// locks; they must not block. After Close, or once the stream is broken, Send does nothing.
template <class Message>
class HandoffChannel {
 public:
  virtual ~HandoffChannel() = default;
  virtual void Send(const Message& message) = 0;
  // No further messages: half-closes the stream (sender) or finishes the call (receiver) after the
  // queued messages.
  virtual void Close() = 0;
};

using HandoffSenderChannel = HandoffChannel<v1::HandoffSenderMessage>;
using HandoffReceiverChannel = HandoffChannel<v1::HandoffReceiverMessage>;

}  // namespace penstock
