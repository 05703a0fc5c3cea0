#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace penstock {

// Says which tokens may come next in one answer. One thread at a time.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Records a token of the answer. Does not wait.
  virtual void Observe(uint32_t token) = 0;
  // Bit i % 32 of word i / 32 is set for each token i that may come next; at least one is. Waits
  // until all observed tokens have been taken into account. An error when one of them was not
  // allowed. Valid until the next Observe.
  virtual absl::StatusOr<std::span<const uint32_t>> Allowed() = 0;
};

// Opens constraints of one kind, at the beginning of an answer. Any thread.
class ConstraintSource {
 public:
  virtual ~ConstraintSource() = default;
  virtual std::unique_ptr<TokenConstraint> Open() const = 0;
};

}  // namespace penstock
