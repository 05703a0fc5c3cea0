#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/paged_kv.h"

namespace penstock {

class TokenMover;

// How a model rotates keys by their positions.
struct KeyRotations {
  // Radians per position of each rotated pair of dimensions.
  std::vector<std::vector<float>> tables;
  std::vector<int32_t> layers;  // the index in `tables` of each layer; -1: keys are not rotated
  Exec exec;                    // the runner's, for calls between its steps
  TokenMover* mover = nullptr;  // of pages in a device's memory; null: they are in the host's
};

// The room kernels/blend re-uses keys and values of tokens at other positions than they were
// computed at (CacheBlend, Yao et al., arXiv 2405.16444): it moves them, and measures how far they
// are from what the new position would have. It knows no model, no request and no owner of a page.
struct MoveTokensArgs {
  PagedKv kv;
  std::span<const uint32_t> from;  // block tables
  std::span<const uint32_t> to;
  int64_t from_position = 0;  // of the first token, in its table, and
  int64_t to_position = 0;    // there; no token has been evicted, so slots are positions
  int64_t tokens = 0;
};

// Interface: MoveTokens on the pages of a device. Move returns when the tokens have moved. On the
// runner's thread.
class TokenMover {
 public:
  virtual ~TokenMover() = default;
  virtual void Move(const MoveTokensArgs& args) = 0;
};

// Copies the KV of tokens, of all layers, to other positions. Values are copied bit by bit. Keys
// are rotated by the difference of the positions, in f32, and rounded again; if there is no
// difference they are copied bit by bit too. The result for a token does not depend on the others,
// nor on the number of threads.
void MoveTokens(const KeyRotations& rotations, const MoveTokensArgs& args);

}  // namespace penstock
