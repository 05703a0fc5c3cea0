#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace penstock {

// Which of a tier's slots is given up first. Slots are numbers in [0, slots). One thread at a time.
class EvictionOrder {
 public:
  virtual ~EvictionOrder() = default;
  // `slot` is not in the order yet.
  virtual void Insert(uint32_t slot) = 0;
  virtual void Touch(uint32_t slot) = 0;
  virtual void Remove(uint32_t slot) = 0;
  // The first that may go. It stays in the order until it is removed.
  virtual std::optional<uint32_t> Victim(const std::function<bool(uint32_t)>& may_go) const = 0;
};

// Least recently inserted or touched first. Who touches a prefix from its tail to its head gets
// leaf-first order: a block never goes before those that need it.
std::unique_ptr<EvictionOrder> MakeLruOrder(uint32_t slots);

}  // namespace penstock
