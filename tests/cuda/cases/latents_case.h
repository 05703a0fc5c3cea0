#pragma once

#include <cstdint>
#include <vector>

#include "tests/cuda/cases/attention_case.h"

namespace penstock::cuda {

// Attention over random latents, of the last rows[i] tokens of sequence i.
struct LatentCase {
  int32_t heads = 16;
  int32_t page = 16;
  std::vector<int32_t> lengths;
  std::vector<int32_t> rows;
  AttentionTiles tiles = AttentionTiles::kPlanned;
  bool oracle = true;  // as in AttentionCase
};
// Its bits are [row][head][kLatentRank].
AttentionResult RunLatentAttention(const LatentCase& c);

struct HeadProductCase {
  int32_t heads = 3;
  int32_t rows = 5;
  int32_t inputs = 128;
  int32_t outputs = 64;
  int32_t input_step = 128;
  uint64_t seed = 1;
};
// The worst deviation of a head's product from one in double precision, relative to the root of the
// number of inputs.
double HeadDeviation(const HeadProductCase& c);
// True if each row has the bits that it has without other rows.
bool HeadProductsAreOfTheirRow(const HeadProductCase& c);

// The worst deviation of normalised latents of `width`, summed from `slices`, from one in double
// precision.
double LatentNormDeviation(int rows, int width, int slices, uint64_t seed);

struct LatentRowsCase {
  int32_t rows = 5;
  int32_t slices = 1;
  int32_t heads = 3;        // of queries
  int32_t plain_dims = 24;  // of a query
  int32_t page = 16;
  uint64_t seed = 1;
};
// The worst deviation of stored latents and keys, whose every third row has no slot; infinity if
// anything else is written.
double LatentAppendDeviation(const LatentRowsCase& c);
// The same of queries.
double LatentQueriesDeviation(const LatentRowsCase& c);

}  // namespace penstock::cuda
