#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "base/check.h"
#include "lab/world/machine/scheduler.h"

namespace penstock::world {

// One end's reads and writes of a simulated gRPC stream. As in gRPC, one read and one write may be
// open, and a reaction never runs within the call that starts the operation.
template <class In>
class RpcHalf {
 public:
  struct Reactions {
    std::function<void(bool)> read;
    std::function<void(bool)> write;
    std::function<void()> settle;  // after each change that may end the call
  };

  RpcHalf(Scheduler& scheduler, Process* process) : scheduler_(scheduler), process_(process) {}
  // `call` is kept alive while a reaction is pending.
  void Bind(std::weak_ptr<void> call, Reactions reactions) {
    call_ = std::move(call);
    reactions_ = std::move(reactions);
  }

  // The user's operations.
  void Read(In* into) {
    PENSTOCK_CHECK(into_ == nullptr, "a read is open already");
    into_ = into;
    Serve();
  }
  // The message was copied and sent; the reaction follows.
  void Write() {
    PENSTOCK_CHECK(!writing_, "a write is open already");
    writing_ = true;
    Post([this] {
      writing_ = false;
      reactions_.write(!aborted_);
    });
  }

  // The network's.
  void Receive(In message) {
    if (closed_) return;
    inbox_.push_back(std::move(message));
    Serve();
  }
  // No more messages come. `abort`: those that came are dropped.
  void CloseInput(bool abort) {
    closed_ = true;
    aborted_ |= abort;
    if (abort) inbox_.clear();
    Serve();
    Settle();
  }

  bool idle() const { return into_ == nullptr && !writing_; }
  bool drained() const { return closed_ && inbox_.empty(); }
  bool aborted() const { return aborted_; }
  void Settle() {
    Post([] {});
  }
  void Post(std::function<void()> reaction) {
    scheduler_.After(Duration::zero(), process_,
                     [this, keep = call_.lock(), reaction = std::move(reaction)] {
                       reaction();
                       reactions_.settle();
                     });
  }

 private:
  void Serve() {
    if (into_ == nullptr || serving_ || (inbox_.empty() && !closed_)) return;
    serving_ = true;
    Post([this] {
      serving_ = false;
      if (into_ == nullptr || (inbox_.empty() && !closed_)) return;
      const bool ok = !inbox_.empty();
      if (ok) {
        *into_ = std::move(inbox_.front());
        inbox_.pop_front();
      }
      into_ = nullptr;
      reactions_.read(ok);
    });
  }

  Scheduler& scheduler_;
  Process* const process_;
  std::weak_ptr<void> call_;
  Reactions reactions_;
  std::deque<In> inbox_;
  In* into_ = nullptr;
  bool writing_ = false;
  bool serving_ = false;
  bool closed_ = false;
  bool aborted_ = false;
};

}  // namespace penstock::world
