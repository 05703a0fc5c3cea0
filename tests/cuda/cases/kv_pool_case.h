#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/kv_planes.h"
#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda {

// A pool of pages with random keys and values of some sequences, and what they stand for in
// doubles: keys as the pages hold them, and values rotated back where the pages hold them rotated.
// Pages are dealt at random; everything that belongs to no token is NaN.
struct KvPoolCase {
  struct Options {
    KvCode keys = KvCode::kBf16;
    KvCode values = KvCode::kBf16;
    int32_t kv_heads = 1;
    int32_t head_dim = 128;
    int32_t page = 16;
    int32_t layers = 2;
    float value_deviation = 1.0f;
    // In every head of this token of each sequence, the scales of plane 0 or 1 are NaN.
    int32_t nan_token = -1;
    int32_t nan_plane = 0;
    std::vector<int32_t> lengths;
    std::vector<int32_t> begins;  // the first token of each sequence that is there; empty: 0
    uint64_t seed = 1;
  };

  explicit KvPoolCase(const Options& options);

  // The key (plane 0) or value (plane 1) of a token: planes.head_dim elements.
  const double* Row(int plane, int sequence, int head, int token) const {
    return real[plane][sequence].data() +
           (static_cast<size_t>(head) * lengths[sequence] + token) * planes.head_dim;
  }

  std::vector<int32_t> lengths;
  KvPlanes planes;  // of the last layer
  int64_t table_stride = 0;
  std::vector<std::byte> bytes;  // of the pool, as on the device
  std::unique_ptr<DeviceArray<std::byte>> pool;
  std::unique_ptr<DeviceArray<uint32_t>> tables;
  std::vector<uint32_t> host_tables;
  std::vector<std::vector<double>> real[2];  // [sequence][head][token][element]
};

// The planes of layer `layer` of a pool at `base`: [block][layer][kv_head][K|V][slot][head_dim],
// then the scales of the layer in the same order. Returns the block stride in them.
KvPlanes PlanesOfCodes(const KvPoolCase::Options& options, int32_t layer, std::byte* base);

}  // namespace penstock::cuda
