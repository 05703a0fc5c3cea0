#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// Decides where the pages that a layer will choose are guessed and read ahead, for pages in a file
// (kernels/kv_pager.h). A wrong guess takes the disk's time and the memory of another page. So
// guesses are made while many chosen pages are not in memory and most guesses were right; else
// only in one step of kTrialSteps, to see whether that has changed. One thread.
class PageGuesses {
 public:
  static constexpr int64_t kTrialSteps = 64;

  void BeginStep();
  // True if the layer's pages should be guessed in this step.
  bool Pays(int32_t layer) const;

  // Blocks ascend; `missing` of them were not in memory. OnGuessed comes before OnChosen.
  void OnGuessed(int32_t layer, std::vector<uint32_t> blocks, int64_t missing);
  void OnChosen(int32_t layer, std::span<const uint32_t> blocks, int64_t missing);

 private:
  // One part of this many must be missing: a guess takes the time of some reads.
  static constexpr int64_t kMissingShare = 16;
  // Guesses that are remembered, in blocks.
  static constexpr int64_t kRemembered = 65'536;

  struct Layer {
    std::vector<uint32_t> guessed;  // in this step
    int64_t guessed_missing = 0;
    int64_t chosen = 0, missing = 0;  // in the last step that chose; missing ones of guesses count
  };
  Layer& Of(int32_t layer);

  std::vector<Layer> layers_;
  int64_t steps_ = 0;
  int64_t guessed_ = 0, right_ = 0;  // of all layers
};

}  // namespace penstock
