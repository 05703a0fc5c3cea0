#include <algorithm>
#include <vector>

#include "model/forward/quantised_tensor.h"
#include "model/forward/weight_filler.h"

namespace penstock {
namespace {

// The format that holds the rows of all parts exactly. INVALID_ARGUMENT names two parts that cannot
// be in one matrix.
absl::StatusOr<QuantisedFormat> CommonFormat(const MatrixPlan& plan,
                                             const std::vector<QuantisedTensor>& tensors) {
  QuantisedFormat format = tensors[0].format;
  for (size_t i = 1; i < tensors.size(); ++i) {
    const QuantisedFormat& other = tensors[i].format;
    if (other.bits != format.bits || other.group != format.group) {
      return InvalidArgument("{} is {} and {} is {}; the parts of one product must have one format",
                             plan.parts[0].module, format.Name(), plan.parts[i].module,
                             other.Name());
    }
    if (tensors[i].order != tensors[0].order) {
      return InvalidArgument(
          "{} and {} have their inputs in different orders (g_idx); the parts of one product must "
          "have one order",
          plan.parts[0].module, plan.parts[i].module);
    }
    format.zeros = format.zeros || other.zeros;
    if (other.scale != format.scale) format.scale = ScaleType::kF32;
  }
  return format;
}

void SetRows(const MatrixPart& part, const QuantisedTensor& tensor, QuantisedMatrix& matrix) {
  const std::vector<uint8_t> symmetric(static_cast<size_t>(tensor.groups()),
                                       static_cast<uint8_t>(tensor.format.zero()));
  for (int64_t r = 0; r < part.rows; ++r) {
    QuantisedRow row = tensor.Row(r);
    if (matrix.format().zeros && row.zeros.empty()) row.zeros = symmetric;
    matrix.SetRow(part.at(r, part.place), row);
  }
}

class CheckpointFiller final : public Filler {
 public:
  CheckpointFiller(const ModelConfig& config, const TensorSource& source, const MatrixForms& forms)
      : config_(config), source_(source), forms_(forms) {}

  absl::StatusOr<WeightMatrix> Matrix(const MatrixPlan& plan) override {
    const auto quantised = std::ranges::count_if(plan.parts, [&](const MatrixPart& part) {
      return !QuantisedNameOf(source_, part.module).empty();
    });
    if (quantised == 0) return Floats(plan);
    if (quantised == std::ssize(plan.parts)) return Quantised(plan);
    return InvalidArgument(
        "{} of the {} parts of one product from {} on are quantised; all or none must be",
        quantised, plan.parts.size(), plan.parts[0].module);
  }
  absl::Status Table(const std::string& name, int64_t rows, int64_t columns,
                     Bf16* target) override {
    ASSIGN_OR_RETURN(const TensorView tensor, GetFloats(source_, name, {rows, columns}));
    ToBf16s(tensor, 0, rows * columns, target);
    return absl::OkStatus();
  }
  absl::Status Vector(const std::string& name, int64_t size, float* target) override {
    ASSIGN_OR_RETURN(const TensorView tensor, GetFloats(source_, name, {size}));
    for (int64_t i = 0; i < size; ++i) target[i] = FloatAt(tensor, i);
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<WeightMatrix> Floats(const MatrixPlan& plan) {
    const int64_t inputs = plan.stored_inputs;
    return FillMatrix(plan, forms_, [&](const MatrixPart& part) -> absl::StatusOr<ReadRow> {
      ASSIGN_OR_RETURN(const TensorView tensor,
                       GetFloats(source_, part.module + ".weight", {part.rows, inputs}));
      return [tensor, inputs](int64_t row, Bf16* target) {
        ToBf16s(tensor, row * inputs, inputs, target);
      };
    });
  }

  absl::StatusOr<WeightMatrix> Quantised(const MatrixPlan& plan) {
    if (plan.lm_head ? forms_.lm_head.has_value() : forms_.layers.has_value()) {
      return InvalidArgument(
          "tensor {} is quantised already, and weights asks to round it again; use "
          "weights=checkpoint",
          QuantisedNameOf(source_, plan.parts[0].module));
    }
    std::vector<QuantisedTensor> tensors;
    for (const MatrixPart& part : plan.parts) {
      ASSIGN_OR_RETURN(
          QuantisedTensor tensor,
          ReadQuantised(config_.quantisation, source_, part.module, part.rows, plan.stored_inputs));
      tensors.push_back(std::move(tensor));
    }
    ASSIGN_OR_RETURN(const QuantisedFormat format, CommonFormat(plan, tensors));
    QuantisedMatrix matrix(plan.outputs, plan.inputs, format, tensors[0].order);
    for (size_t i = 0; i < tensors.size(); ++i) SetRows(plan.parts[i], tensors[i], matrix);
    return WeightMatrix(std::move(matrix));
  }

  const ModelConfig& config_;
  const TensorSource& source_;
  const MatrixForms& forms_;
};

}  // namespace

absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const TensorSource& source,
                                    const MatrixForms& forms) {
  CheckpointFiller filler(config, source, forms);
  return BuildWeights(config, filler);
}

}  // namespace penstock
