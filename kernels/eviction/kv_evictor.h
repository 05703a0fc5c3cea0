#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/eviction/evict_layer.h"

namespace penstock {

// Interface: scores keys and moves slots where the pages are: in host memory, or on a GPU. Which
// slots stay is decided on the host for both (EvictLayer). An error of a GPU ends the process,
// because the pages are lost with it. Used by one thread at a time.
class KvEvictor {
 public:
  virtual ~KvEvictor() = default;
  // Sets args.scores, which are in host memory, as ScoreKeys does. Not for kGiven.
  virtual void Score(const KeyScoresArgs& args) = 0;
  // The function of this name (key_scores.h).
  virtual void AddAttention(const KeyScoresArgs& args) = 0;
  // Copies each KV head's slot kept[head][i] of args.keys.blocks to slot i of args.to. All heads
  // keep the same number of slots.
  virtual void Move(const EvictLayerArgs& args, std::span<const std::vector<uint32_t>> kept) = 0;
  // For the host's part of a call.
  virtual const Exec& exec() const = 0;
};

// Of pages in host memory, on the CPU.
class CpuEvictor final : public KvEvictor {
 public:
  explicit CpuEvictor(const Exec& exec) : exec_(exec) {}

  void Score(const KeyScoresArgs& args) override { ScoreKeys(exec_, args); }
  void AddAttention(const KeyScoresArgs& args) override { penstock::AddAttention(exec_, args); }
  void Move(const EvictLayerArgs& args, std::span<const std::vector<uint32_t>> kept) override;
  const Exec& exec() const override { return exec_; }

 private:
  const Exec exec_;
};

}  // namespace penstock
