#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/buffer.h"
#include "model/forward/model_runner.h"
#include "tests/cuda/runner/prompt_tokens.h"

namespace penstock {

inline constexpr int32_t kPositions = 200;

inline ModelConfig TinyConfig() {
  return {.layers = 2,
          .hidden = 64,
          .intermediate = 72,  // not a multiple of 16: padded
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .vocab = 101,
          .max_position = kPositions};
}

// A runner with an arena that it may write to, and a table of scattered blocks per sequence.
struct Rig {
  Rig(ModelRunner& of, int sequences, KvDtype dtype = KvDtype::kBf16)
      : Rig(of, sequences, KvPageFormat{.dtype = dtype}) {}
  Rig(ModelRunner& of, int sequences, const KvPageFormat& format) : runner(of) {
    const KvLayout layout = runner.kv_layout().In(format);
    const int64_t each = layout.BlocksFor(runner.max_position());
    memory = Buffer(static_cast<size_t>(each * sequences) * layout.BlockStride());
    std::fill_n(memory.as<uint16_t>(), memory.bytes() / 2, uint16_t{0xffff});  // NaN
    kv = {memory.as<std::byte>(), each * sequences, layout};
    for (int s = 0; s < sequences; ++s) {
      tables.emplace_back(each);
      for (int64_t i = 0; i < each; ++i) tables[s][i] = static_cast<uint32_t>(i * sequences + s);
    }
  }

  struct Feed {
    int sequence;
    std::vector<uint32_t> tokens;
    int32_t position;
    bool wants_logits = true;
    std::vector<DrawSpec> draws = {};
    int32_t evicted = 0;
    bool prompt = false;
  };
  std::vector<float> Step(const std::vector<Feed>& feeds) {
    std::vector<SequenceStep> steps;
    int64_t wanted = 0;
    size_t draws = 0;
    for (const Feed& feed : feeds) {
      steps.push_back({.tokens = feed.tokens,
                       .position = feed.position,
                       .blocks = tables[feed.sequence],
                       .evicted = feed.evicted,
                       .prompt = feed.prompt,
                       .wants_logits = feed.wants_logits,
                       .draws = feed.draws});
      wanted += feed.wants_logits ? 1 : 0;
      draws += feed.draws.size();
    }
    drawn.assign(draws, {});
    std::vector<float> logits(wanted * runner.vocab());
    const absl::Status status = runner.Step({.sequences = steps,
                                             .kv = kv,
                                             .logits = {logits.data(), {wanted, runner.vocab()}},
                                             .drawn = drawn,
                                             .on_layers_done = on_layers_done,
                                             .layers_per_group = 1,
                                             .on_queries = on_queries,
                                             .observed = observed,
                                             .meanwhile = meanwhile});
    EXPECT_TRUE(status.ok()) << status.message();
    return logits;
  }

  ModelRunner& runner;
  Buffer memory;
  PagedKv kv;
  std::vector<std::vector<uint32_t>> tables;
  std::vector<DrawnToken> drawn;  // by the last step
  std::function<void(int32_t, int32_t)> on_layers_done;
  std::function<void(int32_t, View<const float, 2>)> on_queries;
  std::vector<RowRange> observed;
  std::function<void()> meanwhile;
};

}  // namespace penstock
