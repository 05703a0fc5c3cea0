#pragma once

#include "model/packed/packed_weights_file.h"
#include "model/weights/weight_filler.h"

namespace penstock {

// A Filler that writes what another one gives to a file, and gives matrices whose panels are in the
// mapped file. Those of the weights that it fills are valid until `writer` ends.
class PackingFiller final : public Filler {
 public:
  // All outlive it. `contents` gets an answer for each call.
  PackingFiller(Filler& from, PackedWeightsWriter& writer, v1::PackedWeights& contents)
      : from_(from), writer_(writer), contents_(contents) {}

  absl::StatusOr<WeightMatrix> Matrix(const MatrixPlan& plan) override;
  bool IsMatrix(const std::string& module) const override;
  absl::Status Table(const std::string& name, int64_t rows, int64_t columns, Bf16* target) override;
  absl::Status Floats(const std::string& name, const std::vector<int64_t>& shape,
                      float* target) override;

 private:
  absl::Status Append(uint64_t question, std::span<const std::byte> bytes);

  Filler& from_;
  PackedWeightsWriter& writer_;
  v1::PackedWeights& contents_;
};

// A Filler that gives what is in such a file. Matrices have their panels there, so the file
// outlives the weights. DATA_LOSS if the file has the weights of another plan.
class PackedFiller final : public Filler {
 public:
  explicit PackedFiller(const PackedWeightsFile& file) : file_(file) {}

  absl::StatusOr<WeightMatrix> Matrix(const MatrixPlan& plan) override;
  bool IsMatrix(const std::string& module) const override;
  absl::Status Table(const std::string& name, int64_t rows, int64_t columns, Bf16* target) override;
  absl::Status Floats(const std::string& name, const std::vector<int64_t>& shape,
                      float* target) override;

 private:
  // The next answer, or null if it is not one to this question.
  const v1::PackedWeights::Answer* Next(uint64_t question) const;
  absl::Status Copy(uint64_t question, const std::string& name, std::span<std::byte> target);

  const PackedWeightsFile& file_;
  mutable int next_ = 0;  // answer
};

}  // namespace penstock
