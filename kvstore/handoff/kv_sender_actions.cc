#include <utility>

#include "kvstore/handoff/kv_sender.h"

// The actions that KvSender performs for a handoff's state machine.

namespace penstock {

void KvSender::Perform(Handoff& handoff, HandoffSender::Actions actions) {
  for (auto& action : actions) {
    std::visit([&](auto& one) REQUIRES(mutex_) { Do(handoff, one); }, action);
  }
  if (!actions.empty()) Wake();
}

void KvSender::Do(Handoff& handoff, HandoffSender::Send& send) {
  Defer([channel = handoff.args.channel, message = std::move(send.message)] {
    channel->Send(message);
  });
}

void KvSender::Do(Handoff& handoff, HandoffSender::OpenLane& open) {
  handoff.wire_address = std::move(open.wire_address);
}

void KvSender::Do(Handoff& handoff, HandoffSender::Reached& reached) {
  if (reached.state == HandoffState::kCredited && handoff.args.on_credited) {
    Defer(handoff.args.on_credited);
  }
  if (!options_.on_step) return;
  Defer([this, state = reached.state] { options_.on_step(HandoffStateName(state)); });
}

void KvSender::Do(Handoff& handoff, HandoffSender::Committed&) {
  // The peer's Committed may arrive before the wire reports the slab's end.
  if (handoff.first_slab_at == TimePoint()) handoff.first_slab_at = clock_.Now();
  const KvSendStats stats{
      .kv_bytes = handoff.machine.kv_bytes(),
      .wire_bytes = handoff.wire_bytes,
      .slabs = handoff.machine.slabs(),
      .layers = static_cast<uint32_t>(format_.layout.layers),
      .layers_overlapped = handoff.machine.layers_overlapped(),
      .exposed = clock_.Now() - handoff.computed_at,
      .first_slab = handoff.first_slab_at - handoff.ready_at,
      .transport = handoff.transport + (handoff.from_device ? ", from GPU memory" : ""),
      .codecs = handoff.used,
  };
  handoff.over_at = clock_.Now();
  Defer([channel = handoff.args.channel, on_committed = handoff.args.on_committed, stats] {
    channel->Close();
    on_committed(stats);
  });
}

void KvSender::Do(Handoff& handoff, HandoffSender::Failed& failed) {
  handoff.over_at = clock_.Now();
  Defer([channel = handoff.args.channel, on_failed = handoff.args.on_failed, why = failed.status] {
    channel->Close();
    on_failed(why);
  });
}

void KvSender::Do(Handoff& handoff, HandoffSender::Release&) {
  handoff.blocks.clear();
  handoff.released = true;
  if (handoff.args.on_released) Defer(handoff.args.on_released);
}

}  // namespace penstock
