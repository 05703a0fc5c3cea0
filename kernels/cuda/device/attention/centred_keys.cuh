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

// The angles of a tile's tokens that a warp multiplies, for each 8 tokens and each two steps of the
// mma. A narrow block reads them early, because few of its warps wait at a time; a wide one has no
// registers for that.
template <class Shape>
struct TileAngles {
  static constexpr int kParts = Shape::kDim / kAngleDims;
  static constexpr int kOwn = Shape::kWide ? 1 : Shape::kTokens / 8 / Shape::kWarps;

  const Words4* from;        // of the warp's first 8 tokens, and of this lane
  Words4 own[kOwn][kParts];  // of a narrow block

  PENSTOCK_DEVICE TileAngles(const AttentionBlock<Shape>& b, int tile) {
    const int eights = tile * (Shape::kTokens / 8) + b.first_score;
    from = reinterpret_cast<const Words4*>(b.p.angles) + eights * (kParts * 32) + b.lane;
    if constexpr (!Shape::kWide) {
      PENSTOCK_UNROLL
      for (int eight = 0; eight < kOwn; ++eight) {
        PENSTOCK_UNROLL
        for (int part = 0; part < kParts; ++part) own[eight][part] = Load(eight, part);
      }
    }
  }
  PENSTOCK_DEVICE Words4 Load(int eight, int part) const {
    return from[(eight * kParts + part) * 32];
  }
  PENSTOCK_DEVICE Words4 At(int eight, int part) const {
    if constexpr (Shape::kWide) {
      return Load(eight, part);
    } else {
      return own[eight][part];
    }
  }
};

// Adds to the scores of a warp's tokens.
template <class Shape>
PENSTOCK_DEVICE void AddCentre(AttentionBlock<Shape>& b, const TileAngles<Shape>& angles) {
  using Block = AttentionBlock<Shape>;
  PENSTOCK_UNROLL
  for (int part = 0; part < TileAngles<Shape>::kParts; ++part) {
    uint32_t query[Block::kRowTiles][2][4];
    PENSTOCK_UNROLL
    for (int m = 0; m < Block::kRowTiles; ++m) {
      const int first_row = Shape::kWide ? (b.warp * Block::kRowTiles + m) * 16 : 0;
      b.LoadQuery(query[m][0], first_row, 2 * part, Shape::kCentreAt);
      b.LoadQuery(query[m][1], first_row, 2 * part + 1, Shape::kCentreAt);
    }
    PENSTOCK_UNROLL
    for (int j = 0; j < Block::kOwnScores; ++j) {
      const Words4 x = angles.At(j, part);
      PENSTOCK_UNROLL
      for (int m = 0; m < Block::kRowTiles; ++m) {
        Mma<true>(b.scores[m][j], query[m][0], x.word[0], x.word[1]);
        Mma<true>(b.scores[m][j], query[m][1], x.word[2], x.word[3]);
      }
    }
  }
}

}  // namespace penstock::cuda
