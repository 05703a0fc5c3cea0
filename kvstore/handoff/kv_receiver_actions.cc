#include <utility>

#include "kvstore/handoff/kv_receiver.h"

// The actions that KvReceiver performs for a handoff's state machine.

namespace penstock {

void KvReceiver::Perform(Session& session, HandoffReceiver::Actions actions) {
  for (auto& action : actions) {
    std::visit([&](auto& one) REQUIRES(mutex_) { Do(session, one); }, action);
  }
}

void KvReceiver::Do(Session& session, HandoffReceiver::Send& send) {
  if (!session.channel) return;
  Defer([channel = session.channel, message = std::move(send.message)] { channel->Send(message); });
}

void KvReceiver::Do(Session& session, HandoffReceiver::Bind& bind) {
  for (BlockRef& page : session.credit.Take(bind.blocks)) {
    session.pages.push_back(std::move(page));
  }
  session.credit.MoveWindow(session.pages,
                            format_.layout.FirstGroupBlock(session.expectation->tokens),
                            std::ssize(session.pages));
}

void KvReceiver::Do(Session&, HandoffReceiver::Reached& reached) {
  if (!options_.on_step) return;
  Defer([this, state = reached.state] { options_.on_step(HandoffStateName(state)); });
}

void KvReceiver::Do(Session& session, HandoffReceiver::Committed& committed) {
  // Shared only because a std::function must be copyable.
  auto received = std::make_shared<ReceivedKv>();
  received->blocks = std::move(session.pages);
  received->credit = std::move(session.credit);
  received->tokens = session.expectation->tokens;
  received->first = std::move(committed.first);
  Defer([received, on_committed = session.expectation->on_committed] {
    on_committed(std::move(*received));
  });
}

void KvReceiver::Do(Session& session, HandoffReceiver::Failed& failed) {
  std::erase(admission_queue_, session.machine.key());
  if (session.channel) Defer([channel = session.channel] { channel->Close(); });
  if (!session.expectation) return;
  Defer([why = failed.status, on_failed = session.expectation->on_failed] { on_failed(why); });
}

void KvReceiver::Do(Session& session, HandoffReceiver::Release&) {
  session.pages.clear();
  session.credit = BlockCredit();
}

}  // namespace penstock
