#include <utility>

#include "base/check.h"
#include "model/weights/weight_filler.h"

namespace penstock {
namespace {

class RandomFiller final : public Filler {
 public:
  RandomFiller(uint64_t seed, float deviation, const MatrixForms& forms)
      : forms_(forms), state_(seed * 2 + 1), scale_(deviation / 37837.0f) {}

  absl::StatusOr<WeightMatrix> Matrix(const MatrixPlan& plan) override {
    return FillMatrix(plan, forms_, [&](const MatrixPart&) -> absl::StatusOr<ReadRow> {
      return [&](int64_t, int64_t, int64_t count, Bf16* target) {
        for (int64_t i = 0; i < count; ++i) target[i] = ToBf16(Normal());
      };
    });
  }
  bool IsMatrix(const std::string&) const override { return false; }
  absl::Status Table(const std::string&, int64_t rows, int64_t columns, Bf16* target) override {
    for (int64_t i = 0; i < rows * columns; ++i) target[i] = ToBf16(Normal());
    return absl::OkStatus();
  }
  absl::Status Floats(const std::string& name, const std::vector<int64_t>& shape,
                      float* target) override {
    const bool norm = name.find("norm") != std::string::npos;
    const int64_t size = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    for (int64_t i = 0; i < size; ++i) target[i] = norm ? 1.0f : Normal();
    return absl::OkStatus();
  }

 private:
  // The sum of four uniform 16-bit numbers, whose standard deviation is 37837: nearly normal.
  float Normal() {
    state_ += 0x9e3779b97f4a7c15u;  // SplitMix64 (Steele, Lea and Flood, 2014)
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const auto sum =
        static_cast<int32_t>((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    return static_cast<float>(sum - 2 * 65535) * scale_;
  }

  const MatrixForms forms_;
  uint64_t state_;
  const float scale_;
};

}  // namespace

Weights RandomWeights(const ModelConfig& config, uint64_t seed, float deviation,
                      const MatrixForms& forms, std::unique_ptr<ExpertCache> experts) {
  RandomFiller filler(seed, deviation, forms);
  absl::StatusOr<Weights> weights = BuildWeights(config, filler, std::move(experts));
  PENSTOCK_CHECK(weights.ok());
  return *std::move(weights);
}

}  // namespace penstock
