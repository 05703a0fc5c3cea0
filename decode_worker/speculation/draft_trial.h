#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace penstock {

// A sequence whose guesses by the draft model pay, if the acceptance is as assumed.
struct DraftWish {
  double cost = 0;     // to compute its pending tokens in the draft model, in steps of the target
  bool begun = false;  // some of its tokens were computed
  bool ready = false;  // nothing is pending
};

// Decides for which sequences the draft model computes KV. While the acceptance is not known, one
// sequence at a time is a trial: the cheapest one, once the target's steps have earned its cost. So
// a draft model that is always wrong costs a small share of a worker's time, however many sequences
// it has. One thread.
class DraftTrial {
 public:
  // A step of the target has ended. `known`: enough guesses were compared.
  void EndStep(bool known) { earned_ = known ? 0 : earned_ + kShare; }

  // Indices of the wishes whose computation may go on, in the order of preference.
  std::vector<size_t> Order(std::span<const DraftWish> wishes, bool known) const {
    std::vector<size_t> order(wishes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const bool on_trial = std::ranges::any_of(wishes, &DraftWish::begun);
    std::erase_if(order, [&](size_t i) {
      const DraftWish& wish = wishes[i];
      return wish.ready || (!known && (on_trial ? !wish.begun : wish.cost > earned_));
    });
    if (!known) std::ranges::stable_sort(order, {}, [&](size_t i) { return wishes[i].cost; });
    return order;
  }

  // The computation of a wish goes on.
  void Spend(const DraftWish& wish) {
    if (!wish.begun) earned_ = std::max(0.0, earned_ - wish.cost);
  }

 private:
  static constexpr double kShare = 1.0 / 32;  // of the target's steps

  double earned_ = 0;  // in steps of the target
};

}  // namespace penstock
