#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/kv_planes.h"
#include "kernels/cuda/row_params.h"

namespace penstock::cuda {

// Worst deviations from double-precision oracles; NaN where a result is NaN.

struct NormCase {
  int32_t rows = 3;
  int32_t hidden = 256;
  int32_t slices = 1;
  bool norm = true;  // false: the output is the residual
  bool layer_norm = false;
  bool product_norm = false;
  bool product_bias = false;
  float factor = 1;
  bool norms_first = false;
};
// The deviation of a normed row and of the residual, over the oracle's magnitude plus one.
double NormDeviation(const NormCase& c, uint64_t seed);
double GeluDeviation(GeluKind kind, int rows, int width, int slices, uint64_t seed);
struct WideNormCase {
  int32_t rows = 3;
  int32_t query_width = 256;
  int32_t key_width = 128;
  int32_t slices = 1;
};
double WideHeadNormDeviation(const WideNormCase& c, uint64_t seed);
double PlacedEmbeddingDeviation(bool placed, int rows, int hidden, uint64_t seed);
double CapSlicesDeviation(float factor, float cap, int rows, int width, int slices, uint64_t seed);
double SiluDeviation(int rows, int half, int slices, uint64_t seed);
bool EmbeddingIsExact(int rows, int hidden, uint64_t seed);
bool GatherRowsIsExact(int rows, int width, uint64_t seed);
// In place and elsewhere: slices in ascending order, as f32, and the bias last.
bool SumSlicesIsExact(int rows, int width, int slices, uint64_t seed);

struct RopeCase {
  KvCode keys = KvCode::kBf16;
  KvCode values = KvCode::kBf16;
  int32_t head_dim = 128;
  int32_t heads = 3;
  int32_t kv_heads = 2;
  int32_t page = 16;
  int32_t rows = 5;
  int32_t slices = 1;
  int32_t rotary_dims = -1;  // -1: all
  bool norms = false;
  bool bias = false;
  bool rotated = false;
  bool centred = false;  // first copies are without the means of keys
  float deviation = 1.0f;
  uint64_t seed = 1;
};
struct RopeDeviation {
  double queries = 0;      // over the oracle's magnitude plus the row's root mean square
  double centre = 0;       // the same of centre queries
  double kept = 0;         // of what the pages hold, in units of what its code may lose
  bool untouched = false;  // nothing else of the pool has changed
};
RopeDeviation RunRopeAppend(const RopeCase& c);

// The codes of one head of one token, then its scales, as RopeAppend leaves them in a page of
// `dtype`: of the key (after rotation by `cosines` and `sines`) or of the value. With a span, then
// its second copy.
struct HeadCase {
  KvDtype dtype = KvDtype::kI8;
  int32_t span = 0;
  bool key = false;
  std::vector<float> x;  // 64 or 128
  std::vector<float> cosines, sines;
  std::vector<float> mean = {};  // of keys, which the codes leave out, with a span; empty: nothing
};
// The page's layout, which has one head.
KvLayout HeadLayoutOf(const HeadCase& c);
std::vector<std::byte> AppendHead(const HeadCase& c);

}  // namespace penstock::cuda
