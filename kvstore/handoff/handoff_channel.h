#pragma once

#include <memory>

#include "proto/handoff.pb.h"

namespace penstock {

// One handoff's control stream, seen from the side that sends `Message`. A seam: gRPC in the
// workers, a simulated network in the tests.
//
// The stream and the handoff end at different times and neither waits for the other, so both hold
// it by shared_ptr. Send and Close are called one at a time and without any lock held, but on any
// thread; they must not block. After Close, or once the stream is broken, Send does nothing.
template <class Message>
class HandoffChannel {
 public:
  virtual ~HandoffChannel() = default;
  virtual void Send(const Message& message) = 0;
  // Nothing more will be sent: half-close (sender) or finish the call (receiver) after what is
  // queued.
  virtual void Close() = 0;
};

using HandoffSenderChannel = HandoffChannel<v1::HandoffSenderMessage>;
using HandoffReceiverChannel = HandoffChannel<v1::HandoffReceiverMessage>;

}  // namespace penstock
