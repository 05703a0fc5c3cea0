#include "kvstore/handoff/handoff_claims.h"

#include <fmt/format.h>

#include <set>

namespace penstock {

struct HandoffClaims::Claim::Keys {
  Mutex mutex;
  std::set<HandoffKey, HandoffKeyLess> taken GUARDED_BY(mutex);
};

HandoffClaims::Claim::~Claim() {
  if (keys_ == nullptr) return;
  MutexLock lock(keys_->mutex);
  keys_->taken.erase(key_);
}

HandoffClaims::HandoffClaims() : keys_(std::make_shared<Claim::Keys>()) {}
HandoffClaims::~HandoffClaims() = default;

absl::StatusOr<HandoffClaims::Claim> HandoffClaims::Take(const HandoffKey& key) {
  MutexLock lock(keys_->mutex);
  if (!keys_->taken.insert(key).second) {
    return absl::AlreadyExistsError(
        fmt::format("another call here works on handoff {}", HandoffKeyText(key)));
  }
  return Claim(keys_, key);
}

}  // namespace penstock
