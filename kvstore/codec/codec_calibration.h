#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kvstore/codec/codec.h"

namespace penstock {

inline constexpr int kCgxLevels = 5;

// The calibration that kCgx needs for a model: means of channels, quantisation steps and symbol
// distributions. Measured once (`penstock calibrate`), kept beside the model, never sent with a
// block. Immutable once measured or loaded; any thread.
class KvCalibration {
 public:
  struct Geometry {
    uint16_t layers = 0;
    uint16_t kv_heads = 0;
    uint16_t planes = 2;
    uint16_t head_dim = 0;
    uint16_t rope_dim = 0;
    bool operator==(const Geometry&) const = default;
  };
  // One head of one plane of one layer, at one level.
  struct Table {
    std::array<uint8_t, 16> frequencies{};  // of KvQuantOps symbols; each >= 1, sum 256
    // Low bits of each quantised value that are stored without entropy coding; at most 8.
    uint8_t low_bits = 0;
    bool operator==(const Table&) const = default;
  };

  // Measures `blocks` (at least one). Each has the elements of `run`, which is one block with all
  // layers of the model.
  static KvCalibration Measure(const KvRun& run, std::span<const Bf16* const> blocks);

  // The number of (layer, head, plane) combinations.
  static size_t Units(const Geometry& geometry) {
    return size_t{geometry.layers} * geometry.kv_heads * geometry.planes;
  }

  // INVALID_ARGUMENT names the bad field.
  static absl::StatusOr<KvCalibration> Parse(std::span<const std::byte> bytes);
  std::vector<std::byte> Serialise() const;

  // kv_calibration.bin in the model's directory, or FILE.gguf.kv_calibration.bin beside a GGUF
  // file. NOT_FOUND tells how to create the file.
  static absl::StatusOr<KvCalibration> Load(const std::string& model);
  absl::Status Save(const std::string& model) const;

  const Geometry& geometry() const { return geometry_; }
  uint64_t id() const { return id_; }  // a hash of the whole content; never 0
  // [head_dim - rope_dim]
  const float* mean(size_t layer, size_t head, size_t plane) const;
  float step(int level, size_t layer, size_t plane) const;
  const Table& table(int level, size_t layer, size_t head, size_t plane) const;

 private:
  explicit KvCalibration(const Geometry& geometry);
  void MeasurePlane(const KvRun& run, std::span<const Bf16* const> blocks, size_t layer,
                    size_t plane);
  size_t Index(size_t layer, size_t head, size_t plane) const;
  size_t dims() const { return static_cast<size_t>(geometry_.head_dim - geometry_.rope_dim); }
  void SetId();

  Geometry geometry_;
  uint64_t id_ = 0;
  std::vector<float> means_;   // [layer][head][plane][dim], bf16 values
  std::vector<float> steps_;   // [level][layer][plane]
  std::vector<Table> tables_;  // [level][layer][head][plane]
};

}  // namespace penstock
