#pragma once

// The part of attention that centred keys need (docs/adr/0068-centred-keys.md): the product of each
// row's centre query with the angles of a tile's positions, which is added to the scores of codes.
// It has the shape of a product with keys. Its first operand lies beside the queries in shared
// memory. The angles, which all sequences, heads and layers share, are read from memory as the mma
// wants them.

#include "kernels/cuda/angle_order.h"
#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/device/device.cuh"

namespace penstock::cuda {

template <class Shape>
struct AttentionBlock;

// The angles of a tile's tokens that a warp multiplies. A narrow block reads them early, because
// few warps are there to hide a wait; a wide one has no registers for that.
template <class Shape>
struct TileAngles {
  static constexpr int kParts = Shape::kDim / kAngleDims;  // of two steps of the mma
  static constexpr int kOwn = Shape::kWide ? 1 : Shape::kTokens / 8 / Shape::kWarps;

  const AttentionBlock<Shape>& b;
  int tile;
  Words4 own[kOwn][kParts];  // of a narrow block, for each 8 tokens

  PENSTOCK_DEVICE TileAngles(const AttentionBlock<Shape>& block, int of) : b(block), tile(of) {
    if constexpr (!Shape::kWide) {
      PENSTOCK_UNROLL
      for (int eight = 0; eight < kOwn; ++eight) {
        PENSTOCK_UNROLL
        for (int part = 0; part < kParts; ++part) {
          own[eight][part] = reinterpret_cast<const Words4*>(b.p.angles)[Place(eight, part)];
        }
      }
    }
  }
  // Of this lane's words, in fours.
  PENSTOCK_DEVICE int Place(int eight, int part) const {
    const int eights = tile * (Shape::kTokens / 8) + b.first_score + eight;
    return (eights * kParts + part) * 32 + b.lane;
  }
  // The operand of step `k` for 8 tokens of the warp.
  PENSTOCK_DEVICE Words2 At(int eight, int k) const {
    if constexpr (Shape::kWide) {
      return reinterpret_cast<const Words2*>(b.p.angles)[2 * Place(eight, k / 2) + k % 2];
    } else {
      const Words4& both = own[eight][k / 2];
      return {{both.word[k % 2 * 2], both.word[k % 2 * 2 + 1]}};
    }
  }
};

// Adds to the scores of a warp's tokens.
template <class Shape>
PENSTOCK_DEVICE void AddCentre(AttentionBlock<Shape>& b, const TileAngles<Shape>& angles) {
  using Block = AttentionBlock<Shape>;
  PENSTOCK_UNROLL
  for (int k = 0; k < Block::kSteps; ++k) {
    uint32_t query[Block::kRowTiles][4];
    PENSTOCK_UNROLL
    for (int m = 0; m < Block::kRowTiles; ++m) {
      const int first_row = Shape::kWide ? (b.warp * Block::kRowTiles + m) * 16 : 0;
      b.LoadQuery(query[m], first_row, k, Shape::kCentreAt);
    }
    PENSTOCK_UNROLL
    for (int j = 0; j < Block::kOwnScores; ++j) {
      const Words2 x = angles.At(j, k);
      PENSTOCK_UNROLL
      for (int m = 0; m < Block::kRowTiles; ++m) {
        Mma<true>(b.scores[m][j], query[m], x.word[0], x.word[1]);
      }
    }
  }
}

}  // namespace penstock::cuda
