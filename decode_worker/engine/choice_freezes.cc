#include "decode_worker/engine/choice_freezes.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace penstock {

void ChoiceFreezes::Serve() {
  std::vector<FreezeRequest> waiting = std::exchange(waiting_, {});
  for (FreezeRequest& request : waiting) {
    if (!Freeze(request)) waiting_.push_back(std::move(request));
  }
  for (FreezeQueue::Mail& mail : queue_.Take()) {
    if (const UnfreezeRequest* end = std::get_if<UnfreezeRequest>(&mail)) {
      Unfreeze(*end);
    } else if (auto& request = std::get<FreezeRequest>(mail); !Freeze(request)) {
      waiting_.push_back(std::move(request));
    }
  }
}

bool ChoiceFreezes::Freeze(const FreezeRequest& request) {
  if (preemption_.Has(request.key)) return false;
  const KvLayout& layout = pool_.view().layout;
  DecodeSequence* const sequence = running_.Find(request.key, request.choice);
  absl::Status fits = sequence == nullptr
                          ? absl::NotFoundError("the choice is not decoded here, or has ended")
                          : sequence->CheckFreeze(request, layout);
  if (!fits.ok()) {
    request.sink->OnRefused(std::move(fits));
    return true;
  }
  if (sequence->full()) return false;
  running_.Rest(sequence->id);
  sequence->freezes.push_back(request.freeze);
  ++sequence->session->choices_frozen;
  const auto blocks =
      layout.BlocksFor(static_cast<int64_t>(request.tokens.size()) - sequence->evicted);
  request.sink->OnFrozen(
      pool_.Share(std::span(sequence->blocks).first(static_cast<size_t>(blocks))));
  return true;
}

void ChoiceFreezes::Unfreeze(const UnfreezeRequest& end) {
  const auto waiting =
      std::find_if(waiting_.begin(), waiting_.end(),
                   [&](const FreezeRequest& request) { return request.freeze == end.freeze; });
  if (waiting != waiting_.end()) {
    waiting_.erase(waiting);
    return;
  }
  DecodeSequence* const sequence = running_.Find(end.key, end.choice);
  // The choice may have ended, or the request was refused.
  if (sequence == nullptr || std::erase(sequence->freezes, end.freeze) == 0) return;
  --sequence->session->choices_frozen;
  if (sequence->freezes.empty()) running_.EndRest(sequence->id);
}

}  // namespace penstock
