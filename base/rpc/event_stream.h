#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace penstock {

// The server's side of a server-streaming call: any thread queues events, which are written in
// order. The call ends after the events queued before End. Producer and call may each outlive the
// other, hence shared ownership; gRPC's reference ends with OnDone. The owner must bound the number
// of events.
template <class Event>
class EventStream : public grpc::ServerWriteReactor<Event>,
                    public std::enable_shared_from_this<EventStream<Event>> {
 public:
  // Creates gRPC's reference. Call it once, before the reactor is passed to gRPC.
  void HoldForCall() { self_ = this->shared_from_this(); }

  void Push(Event event) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (ended_) return;
    events_.push_back(std::move(event));
    if (events_.size() == 1) this->StartWrite(&events_.front());
  }

  // Ends the call. Only the first call has an effect; returns true if this was it.
  bool End(grpc::Status status) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (ended_) return false;
    ended_ = true;
    status_ = std::move(status);
    if (events_.empty()) this->Finish(status_);
    return true;
  }

  void OnWriteDone(bool ok) final EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    events_.pop_front();
    if (!ok) events_.clear();  // The client has left; OnCancel notifies the owner.
    if (!events_.empty()) {
      this->StartWrite(&events_.front());
    } else if (ended_) {
      this->Finish(status_);
    }
  }

  void OnDone() final {
    // May delete this object.
    const std::shared_ptr<EventStream> last = std::move(self_);
  }

 private:
  Mutex mutex_;
  std::deque<Event> events_ GUARDED_BY(mutex_);  // the front is being written
  bool ended_ GUARDED_BY(mutex_) = false;
  grpc::Status status_ GUARDED_BY(mutex_);
  std::shared_ptr<EventStream> self_;
};

}  // namespace penstock
