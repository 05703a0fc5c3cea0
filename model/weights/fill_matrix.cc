#include <algorithm>
#include <utility>
#include <vector>

#include "model/weights/formats/row_ranges.h"
#include "model/weights/rounded_rows.h"
#include "model/weights/weight_filler.h"

namespace penstock {
namespace {

absl::StatusOr<WeightMatrix> FillPacked(const MatrixPlan& plan, const OpenPart& open, int threads) {
  PackedMatrix matrix(plan.outputs, plan.inputs);
  for (const MatrixPart& part : plan.parts) {
    ASSIGN_OR_RETURN(const ReadRow read, open(part));
    const auto pack = [&](int64_t first, int64_t last) {
      std::vector<Bf16> row(static_cast<size_t>(plan.inputs));
      for (int64_t r = first; r < last; ++r) {
        read(r, 0, plan.stored_inputs, row.data());
        matrix.SetRow(part.at(r), row.data());
      }
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(ForRowRanges(threads, part.rows, pack));
  }
  return WeightMatrix(std::move(matrix));
}

absl::StatusOr<WeightMatrix> FillRounded(const MatrixPlan& plan, const QuantisedFormat& format,
                                         const OpenPart& open, int threads) {
  QuantisedMatrix matrix(plan.outputs, plan.inputs, format);
  for (const MatrixPart& part : plan.parts) {
    ASSIGN_OR_RETURN(const ReadRow read, open(part));
    const auto round = [&](int64_t first, int64_t last) -> absl::Status {
      RowRounder rounder(format);
      std::vector<Bf16> row(static_cast<size_t>(plan.inputs));
      std::vector<float> values(row.size());
      for (int64_t r = first; r < last; ++r) {
        read(r, 0, plan.stored_inputs, row.data());
        for (size_t i = 0; i < row.size(); ++i) values[i] = ToFloat(row[i]);
        if (!rounder.Round(values)) {
          return InvalidArgument(
              "tensor {}.weight: row {} has a value that is not finite or too large for {}; use "
              "weights=checkpoint",
              part.module, r, format.Name());
        }
        matrix.SetRow(part.at(r), rounder.row());
      }
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(ForRowRanges(threads, part.rows, round));
  }
  return WeightMatrix(std::move(matrix));
}

// A matrix that is put together from the rows of parts.
struct StoredRows {
  struct Place {
    int32_t part = -1;  // -1: no part sets this row
    int32_t row = 0;    // of the part
  };

  void Read(int64_t output, int64_t first, int64_t count, Bf16* target) const {
    const Place place = places[static_cast<size_t>(output)];
    const int64_t present =
        place.part < 0 ? 0 : std::clamp<int64_t>(stored_inputs - first, 0, count);
    if (present > 0) parts[static_cast<size_t>(place.part)](place.row, first, present, target);
    std::fill(target + present, target + count, Bf16{});
  }

  int64_t stored_inputs = 0;
  std::vector<Place> places;  // of the outputs
  std::vector<ReadRow> parts;
};

}  // namespace

absl::StatusOr<WeightMatrix> StoreMatrix(const MatrixPlan& plan, const OpenPart& open) {
  StoredRows rows{.stored_inputs = plan.stored_inputs};
  rows.places.resize(static_cast<size_t>(plan.outputs));
  for (const MatrixPart& part : plan.parts) {
    const auto index = static_cast<int32_t>(rows.parts.size());
    ASSIGN_OR_RETURN(rows.parts.emplace_back(), open(part));
    for (int64_t r = 0; r < part.rows; ++r) {
      rows.places[static_cast<size_t>(part.at(r))] = {index, static_cast<int32_t>(r)};
    }
  }
  return WeightMatrix(StoredMatrix(
      plan.outputs, plan.inputs,
      [rows = std::move(rows)](int64_t output, int64_t first, int64_t count, Bf16* target) {
        rows.Read(output, first, count, target);
      }));
}

absl::StatusOr<WeightMatrix> FillMatrix(const MatrixPlan& plan, const MatrixForms& forms,
                                        const OpenPart& open, int threads) {
  const auto& form = plan.lm_head ? forms.lm_head : forms.layers;
  if (form.has_value() && !plan.never_rounded) return FillRounded(plan, *form, open, threads);
  return FillPacked(plan, open, threads);
}

}  // namespace penstock
