#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace penstock {

// The answering half of a server-streaming call: events are queued by any thread and written in
// order. The call ends after what was queued before End. Whoever makes events may outlive the call
// and the reverse, hence shared ownership; gRPC's part of it ends with OnDone. The owner bounds how
// many events there can be.
template <class Event>
class EventStream : public grpc::ServerWriteReactor<Event>,
                    public std::enable_shared_from_this<EventStream<Event>> {
 public:
  // Gives gRPC its share. Once, before the reactor is handed to gRPC.
  void HoldForCall() { self_ = this->shared_from_this(); }

  void Push(Event event) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (ended_) return;
    events_.push_back(std::move(event));
    if (events_.size() == 1) this->StartWrite(&events_.front());
  }

  // Only the first call counts; whether this was it.
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
    if (!ok) events_.clear();  // The client is gone; OnCancel tells the owner.
    if (!events_.empty()) {
      this->StartWrite(&events_.front());
    } else if (ended_) {
      this->Finish(status_);
    }
  }

  void OnDone() final {
    // May delete this.
    const std::shared_ptr<EventStream> last = std::move(self_);
  }

 private:
  Mutex mutex_;
  std::deque<Event> events_ GUARDED_BY(mutex_);  // the front one is being written
  bool ended_ GUARDED_BY(mutex_) = false;
  grpc::Status status_ GUARDED_BY(mutex_);
  std::shared_ptr<EventStream> self_;
};

}  // namespace penstock
