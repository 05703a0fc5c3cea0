#include "worker/handoff/kv_selections.h"

#include <algorithm>
#include <utility>

namespace penstock {

absl::StatusOr<KvSelections> KvSelections::Open(const std::string& kv_selection, bool able) {
  auto methods = ParseKvSelections(kv_selection);
  if (!methods.ok()) return Annotate(methods.status(), "kv_selection");
  if (!methods->empty() && !able) {
    return FailedPrecondition(
        "kv_selection is {}, which needs a model without sliding windows and latents, a kv_format "
        "without a span, and numerics=exact; use none",
        kv_selection);
  }
  KvSelections opened;
  opened.methods_ = *std::move(methods);
  return opened;
}

absl::StatusOr<std::optional<KvSelection>> KvSelections::Take(std::string_view policy) const {
  const auto parsed = ParseKvPolicy(policy);
  if (!parsed.ok()) return Annotate(parsed.status(), "kv_policy");
  const std::optional<KvSelection> selection = SelectionOf(*parsed);
  if (!selection) return selection;
  for (const std::string& name : KvMethodsOf(*parsed)) {
    if (std::find(methods_.begin(), methods_.end(), name) != methods_.end()) continue;
    return FailedPrecondition("kv_policy is {}, and this worker's --kv_selection lacks {}; replan",
                              *parsed, name);
  }
  return selection;
}

void KvSelections::Describe(v1::WorkerState* state) const {
  for (const std::string& method : methods_) state->add_kv_selections(method);
}

}  // namespace penstock
