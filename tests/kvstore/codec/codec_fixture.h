#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_calibration.h"

namespace penstock {

// Values like those of a model: channels of different widths and means, some large.
inline std::vector<Bf16> KvLike(const KvRun& run, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> width(run.head_dim), mean(run.head_dim);
  for (size_t d = 0; d < run.head_dim; ++d) {
    width[d] = std::exp(0.7f * normal(engine));
    mean[d] = d % 17 == 3 ? 8.0f : 0.3f * normal(engine);
  }
  std::vector<Bf16> values(run.Elements());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t d = i % run.head_dim;
    values[i] = ToBf16(mean[d] + width[d] * normal(engine));
  }
  return values;
}

inline KvRun SmallRun() {
  return {.first_block = 3,
          .blocks = 5,
          .first_layer = 1,
          .layers = 2,
          .kv_heads = 2,
          .planes = 2,
          .block_tokens = 16,
          .head_dim = 64,
          .rope_dim = 0};
}

// Latents of MLA.
inline KvRun MlaRun() {
  return {.first_block = 0,
          .blocks = 3,
          .first_layer = 0,
          .layers = 2,
          .kv_heads = 1,
          .planes = 1,
          .block_tokens = 16,
          .head_dim = 576,
          .rope_dim = 64};
}

inline std::vector<KvRun> Geometries() {
  KvRun wide = SmallRun(), odd = SmallRun(), one = SmallRun();
  wide.head_dim = 128;
  odd.head_dim = 96;
  odd.block_tokens = 32;
  one.blocks = one.layers = one.kv_heads = 1;
  return {SmallRun(), wide, odd, one, MlaRun()};
}

// Measured on other values of the same kind as `run`'s.
inline KvCalibration CalibrationFor(const KvRun& run) {
  KvRun all = run;
  all.first_block = all.first_layer = 0;
  all.layers = static_cast<uint16_t>(run.first_layer + run.layers);
  all.blocks = 4;
  KvRun one = all;
  one.blocks = 1;
  const std::vector<Bf16> values = KvLike(all, 99);
  std::vector<const Bf16*> blocks;
  for (size_t b = 0; b < all.blocks; ++b) blocks.push_back(values.data() + b * one.Elements());
  return KvCalibration::Measure(one, blocks);
}

inline std::vector<std::byte> EncodeAll(const KvCodecSpec& spec, const KvRun& run,
                                        const KvCodecContext& context,
                                        const std::vector<Bf16>& values) {
  std::vector<std::byte> encoded(EncodedKvBound(run));
  const auto used = EncodeKv(spec, run, context, std::as_bytes(std::span(values)), encoded);
  EXPECT_TRUE(used.ok()) << used.status();
  encoded.resize(used.ok() ? *used : 0);
  return encoded;
}

inline absl::StatusOr<std::vector<Bf16>> DecodeAll(const KvCodecSpec& spec, const KvRun& run,
                                                   const KvCodecContext& context,
                                                   std::span<const std::byte> encoded) {
  std::vector<Bf16> values(run.Elements());
  const absl::Status status =
      DecodeKv(spec, run, context, encoded, std::as_writable_bytes(std::span(values)));
  if (!status.ok()) return status;
  return values;
}

inline std::vector<uint16_t> BitsOf(const std::vector<Bf16>& values) {
  std::vector<uint16_t> bits;
  for (const Bf16 value : values) bits.push_back(value.bits);
  return bits;
}

// ||a - b|| / ||a||
inline double RelativeError(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = double{ToFloat(a[i])} - ToFloat(b[i]);
    error += difference * difference;
    norm += double{ToFloat(a[i])} * ToFloat(a[i]);
  }
  return std::sqrt(error / norm);
}

}  // namespace penstock
