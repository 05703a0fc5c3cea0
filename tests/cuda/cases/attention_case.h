#pragma once

#include <cstdint>
#include <vector>

#include "tests/cuda/cases/deviation.h"
#include "tests/cuda/cases/kv_pool_case.h"

namespace penstock::cuda {

enum class AttentionTiles { kPlanned, kWide, kNarrow };

struct AttentionCase {
  KvPoolCase::Options kv;
  int32_t group = 4;  // query heads of a KV head
  int32_t window = 0;
  float cap = 0;  // of scores; 0: none
  bool sinks = false;
  int32_t span = 0;           // tokens, as KvPageFormat has it; 0: none
  int32_t centred_dims = -1;  // dimensions that are rotated, of centred keys; -1: keys are whole
  std::vector<int32_t> rows;  // the number of tokens of sequence i that ask; the last token does
  int32_t apart = 1;          // the distance between tokens that ask; above 1 without a span only
  bool alone = false;  // each of them is a sequence of its own for the kernels; without a span only
  AttentionTiles tiles = AttentionTiles::kPlanned;
  int32_t launch_shares_max = 0;  // TileRows, of planned tiles; 0: no limit
  bool oracle = true;  // compare with it, which takes most of the time; false: bits alone
  uint64_t query_seed = 7;
};

struct AttentionResult {
  Deviation deviation;
  std::vector<uint16_t> bits;  // [row][head][head_dim]
};

// NaN in a result makes the deviation NaN.
AttentionResult RunAttention(const AttentionCase& c);

}  // namespace penstock::cuda
