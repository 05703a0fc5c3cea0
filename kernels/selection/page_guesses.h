#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace penstock {

// Decides where the pages that a layer will choose are guessed and read ahead, for pages in a file
// (kernels/kv_pager.h). A guess hides the reading, and takes a product and a choice; wrong ones
// take the disk's time and the memory of other pages. Which is more depends on the disk, the cores
// and the model. So steps with guesses and without them take turns for a while, and what was faster
// is done for the next kKeptSteps. Within such steps a layer is guessed if many of its pages had to
// be read in the last step. One thread.
class PageGuesses {
 public:
  static constexpr size_t kTrialSteps = 16;  // of each kind
  static constexpr int64_t kKeptSteps = 2'048;

  // A step with `rows` rows that choose pages. A trial compares steps of as many rows.
  void BeginStep(int64_t rows, TimePoint now);
  void EndStep(TimePoint now);

  // True if the layer's pages should be guessed in this step.
  bool Pays(int32_t layer) const;

  // So many of the layer's guessed or chosen pages were not in memory.
  void OnGuessed(int32_t layer, int64_t missing) { Of(layer).guessed_missing = missing; }
  void OnChosen(int32_t layer, int64_t chosen, int64_t missing);

 private:
  // One part of this many must be missing: a guess takes the time of some reads.
  static constexpr int64_t kMissingShare = 16;

  struct Layer {
    int64_t guessed_missing = 0;      // in this step
    int64_t chosen = 0, missing = 0;  // in the last step that chose, in which guesses count
    bool ReadsMany() const { return missing > 0 && missing * kMissingShare >= chosen; }
  };
  Layer& Of(int32_t layer);
  bool AnyMissing() const;
  void BeginTrial(int64_t rows);

  std::vector<Layer> layers_;
  bool guesses_ = false;  // in this step
  int64_t kept_ = 0;      // steps until the next trial; 0: it has begun
  int64_t rows_ = 0;      // of the trial's steps
  TimePoint begun_;
  std::vector<Duration> without_, with_;  // of the trial
};

}  // namespace penstock
