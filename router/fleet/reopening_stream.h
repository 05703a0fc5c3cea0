#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/mutex.h"

namespace penstock {

// A stream of messages from a worker that is reopened when it ends: 100 ms after a stream with at
// least one valid message, and with exponential backoff after others. Tick and the destructor are
// for one thread; Cancel for any.
template <class Message>
class ReopeningStream {
 public:
  using Reader = grpc::ClientReadReactor<Message>;
  // All but `on_open` are called on gRPC's callback threads, one at a time.
  struct Args {
    Duration backoff_max;
    std::function<void()> on_open;  // before each call, on Tick's thread
    std::function<void(grpc::ClientContext*, Reader*)> call;
    std::function<bool(const Message&)> on_message;  // false: invalid; ends the stream
    std::function<void(const grpc::Status&)> on_end;
  };

  explicit ReopeningStream(Args args) : state_(std::make_shared<State>(std::move(args))) {}
  // Cancels the stream and waits for its end.
  ~ReopeningStream() {
    Cancel();
    MutexLock lock(state_->mutex);
    while (state_->stream != nullptr) state_->closed.Wait(state_->mutex);
  }
  ReopeningStream(const ReopeningStream&) = delete;
  ReopeningStream& operator=(const ReopeningStream&) = delete;

  // Opens the stream when none is open and the backoff is over.
  void Tick(TimePoint now) {
    MutexLock lock(state_->mutex);
    if (state_->stream != nullptr) return;
    if (was_open_) {  // the stream has ended since the last Tick
      was_open_ = false;
      backoff_ = state_->heard ? kLeastBackoff : std::min(backoff_ * 2, state_->args.backoff_max);
      next_attempt_ = now + backoff_;
    }
    if (now < next_attempt_) return;
    was_open_ = true;
    state_->heard = false;
    state_->args.on_open();
    state_->stream = std::make_shared<Stream>(state_);
    state_->stream->Open();
  }

  void Cancel() {
    MutexLock lock(state_->mutex);
    if (state_->stream != nullptr) state_->stream->Cancel();
  }

 private:
  static constexpr Duration kLeastBackoff = std::chrono::milliseconds(100);
  class Stream;

  // The state that this object shares with the callbacks of its stream.
  struct State {
    explicit State(Args with) : args(std::move(with)) {}

    const Args args;
    Mutex mutex;
    CondVar closed;
    std::shared_ptr<Stream> stream GUARDED_BY(mutex);  // nullptr: none is open
    bool heard GUARDED_BY(mutex) = false;              // the stream had a valid message
  };

  // gRPC calls it until OnDone; until then State::stream keeps it alive.
  class Stream : public Reader {
   public:
    explicit Stream(std::shared_ptr<State> state) : state_(std::move(state)) {}

    void Open() {
      state_->args.call(&context_, this);
      this->StartRead(&received_);
      this->StartCall();
    }
    void Cancel() { context_.TryCancel(); }

    void OnReadDone(bool ok) override {
      if (!ok) return;  // OnDone follows
      if (!state_->args.on_message(received_)) {
        context_.TryCancel();
        return;
      }
      {
        MutexLock lock(state_->mutex);
        state_->heard = true;
      }
      this->StartRead(&received_);
    }

    void OnDone(const grpc::Status& status) override {
      state_->args.on_end(status);
      // `self` releases the last reference at the end of this function.
      const std::shared_ptr<State> state = state_;
      std::shared_ptr<Stream> self;
      MutexLock lock(state->mutex);
      self.swap(state->stream);
      state->closed.NotifyAll();
    }

   private:
    const std::shared_ptr<State> state_;
    grpc::ClientContext context_;
    Message received_;
  };

  const std::shared_ptr<State> state_;
  Duration backoff_ = kLeastBackoff;
  TimePoint next_attempt_{};
  bool was_open_ = false;
};

}  // namespace penstock
