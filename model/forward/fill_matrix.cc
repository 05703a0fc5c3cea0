#include <utility>
#include <vector>

#include "model/forward/rounded_rows.h"
#include "model/forward/weight_filler.h"

namespace penstock {
namespace {

using OpenPart = std::function<absl::StatusOr<ReadRow>(const MatrixPart&)>;

absl::StatusOr<WeightMatrix> FillPacked(const MatrixPlan& plan, const OpenPart& open) {
  PackedMatrix matrix(plan.outputs, plan.inputs);
  std::vector<Bf16> row(static_cast<size_t>(plan.inputs));
  for (const MatrixPart& part : plan.parts) {
    ASSIGN_OR_RETURN(const ReadRow read, open(part));
    for (int64_t r = 0; r < part.rows; ++r) {
      read(r, row.data());
      matrix.SetRow(part.at(r), row.data());
    }
  }
  return WeightMatrix(std::move(matrix));
}

absl::StatusOr<WeightMatrix> FillRounded(const MatrixPlan& plan, const QuantisedFormat& format,
                                         const OpenPart& open) {
  QuantisedMatrix matrix(plan.outputs, plan.inputs, format);
  RowRounder rounder(format);
  std::vector<Bf16> row(static_cast<size_t>(plan.inputs));
  std::vector<float> values(row.size());
  for (const MatrixPart& part : plan.parts) {
    ASSIGN_OR_RETURN(const ReadRow read, open(part));
    for (int64_t r = 0; r < part.rows; ++r) {
      read(r, row.data());
      for (size_t i = 0; i < row.size(); ++i) values[i] = ToFloat(row[i]);
      if (!rounder.Round(values)) {
        return InvalidArgument(
            "tensor {}.weight: row {} has a value that is not finite or too large for {}; use "
            "weights=checkpoint",
            part.module, r, format.Name());
      }
      matrix.SetRow(part.at(r), rounder.row());
    }
  }
  return WeightMatrix(std::move(matrix));
}

}  // namespace

absl::StatusOr<WeightMatrix> FillMatrix(const MatrixPlan& plan, const MatrixForms& forms,
                                        const OpenPart& open) {
  const auto& form = plan.lm_head ? forms.lm_head : forms.layers;
  if (form.has_value()) return FillRounded(plan, *form, open);
  return FillPacked(plan, open);
}

}  // namespace penstock
