#include "kvstore/tiers/eviction_order.h"

#include <vector>

#include "base/check.h"

namespace penstock {
namespace {

// LRU as a doubly linked ring in an array. Entry `slots` is the ring's head; the least recently
// used slot follows it.
class LruOrder final : public EvictionOrder {
 public:
  explicit LruOrder(uint32_t slots) : head_(slots), links_(size_t{slots} + 1) {
    links_[head_] = {.before = head_, .after = head_};
  }

  void Insert(uint32_t slot) override {
    PENSTOCK_CHECK_LT(slot, head_);
    PENSTOCK_CHECK_EQ(links_[slot].after, kNone);
    Append(slot);
  }

  void Touch(uint32_t slot) override {
    Unlink(slot);
    Append(slot);
  }

  void Remove(uint32_t slot) override {
    Unlink(slot);
    links_[slot] = {};
  }

  std::optional<uint32_t> Victim(const std::function<bool(uint32_t)>& may_go) const override {
    for (uint32_t slot = links_[head_].after; slot != head_; slot = links_[slot].after) {
      if (may_go(slot)) return slot;
    }
    return std::nullopt;
  }

 private:
  static constexpr uint32_t kNone = 0xffffffff;
  struct Link {
    uint32_t before = kNone;
    uint32_t after = kNone;
  };

  void Append(uint32_t slot) {
    const uint32_t last = links_[head_].before;
    links_[slot] = {.before = last, .after = head_};
    links_[last].after = slot;
    links_[head_].before = slot;
  }

  void Unlink(uint32_t slot) {
    const Link link = links_[slot];
    PENSTOCK_CHECK(link.after != kNone, "the slot is not in the order");
    links_[link.before].after = link.after;
    links_[link.after].before = link.before;
  }

  const uint32_t head_;
  std::vector<Link> links_;
};

}  // namespace

std::unique_ptr<EvictionOrder> MakeLruOrder(uint32_t slots) {
  return std::make_unique<LruOrder>(slots);
}

}  // namespace penstock
