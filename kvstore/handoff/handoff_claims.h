#pragma once

#include <memory>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "kvstore/handoff/handoff_types.h"

namespace penstock {

// The keys of the handoffs on which calls of this worker work. Clients choose the keys, so two
// calls may have the same one: a stranger may repeat what another client said. Each call claims its
// key first, and keeps the claim until no engine and no callback acts for it any more. So what is
// done for one call never reaches the handoff of another.
//
// Thread-safe. A claim may outlive this object.
class HandoffClaims {
 public:
  // Gives the key back when it is destroyed. An empty claim has no key.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept = default;
    Claim& operator=(Claim&& other) noexcept {
      std::swap(keys_, other.keys_);
      std::swap(key_, other.key_);
      return *this;
    }
    ~Claim();

    bool empty() const { return keys_ == nullptr; }

   private:
    friend class HandoffClaims;
    struct Keys;
    Claim(std::shared_ptr<Keys> keys, const HandoffKey& key) : keys_(std::move(keys)), key_(key) {}

    std::shared_ptr<Keys> keys_;
    HandoffKey key_;
  };

  HandoffClaims();
  ~HandoffClaims();

  // ALREADY_EXISTS while another claim has the key.
  absl::StatusOr<Claim> Take(const HandoffKey& key);

 private:
  const std::shared_ptr<Claim::Keys> keys_;
};

}  // namespace penstock
