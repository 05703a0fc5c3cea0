#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "router/placement/cost_models.h"

namespace penstock {

// A decode worker of the simulator: continuous batching, whose steps take StepModel's time. Between
// changes of the batch everything is in closed form (the context grows by one token a sequence and
// step), so there is an event a sequence and none a token. Steps are not rounded to whole ones.
class SimDecode {
 public:
  SimDecode(const StepModel& step, double context_max) : step_(step), context_max_(context_max) {}

  // A sequence whose KV is here; waits, first come first served, while the contexts are too many.
  // `steps`: tokens to decode; answered by Finished with `id`.
  void Add(uint32_t id, double context_tokens, double steps, double now_s);
  // When the next sequence ends; nullopt while there is none.
  std::optional<double> NextEnd() const;
  // The sequence that ends at `now_s`, which is NextEnd().
  uint32_t Finish(double now_s);

  double sequences() const { return static_cast<double>(running_.size()); }
  double waiting() const { return static_cast<double>(waiting_.size()); }
  double context_tokens() const { return context_; }

 private:
  struct Sequence {
    double end_step;
    double context;  // when it ends
    uint32_t id;
    bool operator>(const Sequence& other) const { return end_step > other.end_step; }
  };
  struct Waiting {
    uint32_t id;
    double context;
    double steps;
  };
  void Advance(double now_s);
  void Start(const Waiting& sequence);

  const StepModel step_;
  const double context_max_;
  double now_s_ = 0;
  double steps_ = 0;    // done since the start
  double context_ = 0;  // tokens, of all that run
  std::priority_queue<Sequence, std::vector<Sequence>, std::greater<>> running_;
  std::deque<Waiting> waiting_;
};

}  // namespace penstock
