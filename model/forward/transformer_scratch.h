#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kernels/attention.h"
#include "kernels/buffer.h"
#include "kernels/gemm.h"
#include "kernels/kv_rows.h"
#include "kernels/rope.h"
#include "model/forward/angle_table.h"
#include "model/forward/expert_mlp.h"
#include "model/forward/latent_attention.h"
#include "model/forward/step_selection.h"
#include "model/weights/weights.h"

namespace penstock {

// One rotation of queries and keys, and its angles for the rows of a step.
struct RotationScratch {
  RotationScratch(const RopeConfig& rope, int32_t head_dim, int64_t max_tokens);

  void SetRow(int64_t row, int32_t position);
  int64_t pairs() const { return static_cast<int64_t>(table.pairs()); }
  size_t bytes() const { return cosines.bytes() + sines.bytes(); }

  AngleTable table;
  Buffer cosines;  // [max_tokens, pairs]
  Buffer sines;
};

// The memory of TransformerRunner's steps: rows are [max_step_tokens, width].
struct TransformerScratch {
  TransformerScratch(const Weights& weights, const Exec& exec, int32_t max_step_tokens);

  size_t bytes() const;
  // The angles of a layer. A layer without RoPE has no pairs.
  struct Angles {
    View<const float, 2> cosines, sines;
  };
  Angles AnglesOf(LayerRope rope, int64_t rows) const;

  const int64_t max_tokens;
  const int64_t qkv_width;
  const int64_t gated_width;
  const int64_t input_width;
  std::vector<RotationScratch> rotations;  // main, and local if the model has it
  // The angles of all positions, for each kind of rotation that a layer has. Empty if the weights
  // have no means of keys.
  std::map<LayerRope, PositionAngles> position_angles;
  Buffer residual;  // [hidden]
  Buffer input;     // input of a product: normed rows [hidden], or attention's output
  Buffer branch;    // [hidden]: output of attention or MLP, if more than a sum follows; else empty
  Buffer qkv;
  Buffer gated;
  Buffer mtp_hidden;  // [hidden]: the hidden state of the token before; empty without MTP
  Buffer mtp_input;   // [2 * hidden]
  GemmScratch gemm;
  AttentionScratch attention;
  LatentAttention latents;
  ExpertMlp experts;
  StepSelection selection;
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> positions;
  std::vector<KvSlot> slots;
  std::vector<int64_t> reads;  // layers of blocks that were read from a file for a row (WantPages)
};

}  // namespace penstock
