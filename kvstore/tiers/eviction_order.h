#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace penstock {

// The eviction order of a tier's slots, which are numbers in [0, slots). One thread at a time.
class EvictionOrder {
 public:
  virtual ~EvictionOrder() = default;
  // `slot` must not be in the order.
  virtual void Insert(uint32_t slot) = 0;
  virtual void Touch(uint32_t slot) = 0;
  virtual void Remove(uint32_t slot) = 0;
  // The first slot for which `may_go` is true. It stays in the order until it is removed.
  virtual std::optional<uint32_t> Victim(const std::function<bool(uint32_t)>& may_go) const = 0;
};

// Least recently inserted or touched first. If the caller touches a prefix from tail to head,
// eviction is leaf-first (as in RadixAttention, Zheng et al., "SGLang: Efficient Execution of
// Structured Language Model Programs", 2024): no block goes before those that depend on it.
std::unique_ptr<EvictionOrder> MakeLruOrder(uint32_t slots);

}  // namespace penstock
