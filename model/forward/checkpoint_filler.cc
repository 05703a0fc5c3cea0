#include <algorithm>
#include <vector>

#include "model/forward/formats/quantised_tensor.h"
#include "model/forward/weight_filler.h"

namespace penstock {
namespace {

// A part of a product and the weight that it holds.
struct ReadPart {
  const MatrixPart* part;
  QuantisedTensor tensor;
};

bool FitTogether(const QuantisedFormat& a, const QuantisedFormat& b) {
  return a.code == b.code && a.bits == b.bits && a.group == b.group && a.offsets == b.offsets;
}

// The format that holds the rows of all parts exactly. INVALID_ARGUMENT names two parts that cannot
// be in one matrix.
absl::StatusOr<QuantisedFormat> CommonFormat(std::span<const ReadPart> parts) {
  QuantisedFormat format = parts[0].tensor.format;
  for (const ReadPart& other : parts.subspan(1)) {
    const QuantisedFormat& form = other.tensor.format;
    if (!FitTogether(form, format)) {
      return InvalidArgument("{} is {} and {} is {}; the parts of one product must have one format",
                             parts[0].part->module, format.Name(), other.part->module, form.Name());
    }
    if (other.tensor.order != parts[0].tensor.order) {
      return InvalidArgument(
          "{} and {} have their inputs in different orders (g_idx); the parts of one product must "
          "have one order",
          parts[0].part->module, other.part->module);
    }
    format.zeros = format.zeros || form.zeros;
    if (form.scale != format.scale) format.scale = ScaleType::kF32;
  }
  return format;
}

void SetRows(const ReadPart& from, int64_t first_row, QuantisedMatrix& matrix) {
  const QuantisedTensor& tensor = from.tensor;
  const std::vector<uint8_t> symmetric(static_cast<size_t>(tensor.groups()),
                                       static_cast<uint8_t>(tensor.format.zero()));
  for (int64_t r = 0; r < from.part->rows; ++r) {
    QuantisedRow row = tensor.Row(r);
    if (matrix.format().zeros && row.zeros.empty()) row.zeros = symmetric;
    matrix.SetRow(from.part->at(r) - first_row, row);
  }
}

// One matrix of `outputs` outputs, the first of which is output `first` of the plan.
absl::StatusOr<QuantisedMatrix> MakeSection(const MatrixPlan& plan, std::span<const ReadPart> parts,
                                            int64_t first, int64_t outputs) {
  ASSIGN_OR_RETURN(const QuantisedFormat format, CommonFormat(parts));
  QuantisedMatrix matrix(outputs, plan.inputs, format, parts[0].tensor.order);
  for (const ReadPart& part : parts) SetRows(part, first, matrix);
  return matrix;
}

// The number of parts from the front on that fit into one matrix.
size_t PartsTogether(std::span<const ReadPart> parts) {
  size_t count = 1;
  while (count < parts.size() && FitTogether(parts[count].tensor.format, parts[0].tensor.format)) {
    ++count;
  }
  return count;
}

// Parts of different formats, one matrix for each run of parts that fit together.
absl::StatusOr<WeightMatrix> MakeSections(const MatrixPlan& plan, std::span<const ReadPart> parts) {
  WeightMatrix::Sections sections;
  int64_t first = 0;
  while (!parts.empty()) {
    const size_t count = PartsTogether(parts);
    int64_t outputs = 0;
    for (const ReadPart& part : parts.first(count)) outputs += part.part->rows;
    if (count < parts.size() && outputs % QuantisedMatrix::kPanel != 0) {
      return InvalidArgument(
          "{} is {} and {} is {}; formats may change between them only after a multiple of {} "
          "outputs, and {} has {}",
          parts[count - 1].part->module, parts[0].tensor.format.Name(), parts[count].part->module,
          parts[count].tensor.format.Name(), QuantisedMatrix::kPanel, parts[0].part->module,
          outputs);
    }
    ASSIGN_OR_RETURN(QuantisedMatrix matrix, MakeSection(plan, parts.first(count), first, outputs));
    sections.push_back(std::move(matrix));
    first += outputs;
    parts = parts.subspan(count);
  }
  return WeightMatrix(std::move(sections));
}

class CheckpointFiller final : public Filler {
 public:
  CheckpointFiller(const ModelConfig& config, const TensorSource& source, const MatrixForms& forms)
      : config_(config), source_(source), forms_(forms) {}

  absl::StatusOr<WeightMatrix> Matrix(const MatrixPlan& plan) override {
    const auto quantised = std::ranges::count_if(
        plan.parts, [&](const MatrixPart& part) { return IsQuantised(part.module); });
    if (quantised == 0) return Unquantised(plan);
    if (quantised == std::ssize(plan.parts)) return Quantised(plan);
    return InvalidArgument(
        "{} of the {} parts of one product from {} on are quantised; all or none must be",
        quantised, plan.parts.size(), plan.parts[0].module);
  }
  bool IsQuantised(const std::string& module) const override {
    return !QuantisedNameOf(source_, module).empty();
  }
  absl::Status Table(const std::string& name, int64_t rows, int64_t columns,
                     Bf16* target) override {
    ASSIGN_OR_RETURN(const TensorView tensor, GetFloats(source_, name, {rows, columns}));
    ToBf16s(tensor, 0, rows * columns, target);
    return absl::OkStatus();
  }
  absl::Status Floats(const std::string& name, const std::vector<int64_t>& shape,
                      float* target) override {
    ASSIGN_OR_RETURN(const TensorView tensor, GetFloats(source_, name, shape));
    const int64_t columns = shape.size() == 1 ? 1 : shape[1];
    for (int64_t row = 0; row < shape[0]; ++row) {
      const int64_t stored = tensor.StoredRow(row) * columns;
      for (int64_t i = 0; i < columns; ++i) *target++ = FloatAt(tensor, stored + i);
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<WeightMatrix> Unquantised(const MatrixPlan& plan) {
    const int64_t inputs = plan.stored_inputs;
    return FillMatrix(plan, forms_, [&](const MatrixPart& part) -> absl::StatusOr<ReadRow> {
      if (plan.transposed) return TransposedRows(part, inputs);
      ASSIGN_OR_RETURN(const TensorView tensor,
                       GetFloats(source_, part.module + ".weight", {part.rows, inputs}));
      return [tensor, inputs](int64_t row, Bf16* target) {
        ToBf16s(tensor, tensor.StoredRow(row) * inputs, inputs, target);
      };
    });
  }

  absl::StatusOr<ReadRow> TransposedRows(const MatrixPart& part, int64_t inputs) {
    ASSIGN_OR_RETURN(const TensorView tensor,
                     GetFloats(source_, part.module + ".weight", {inputs, part.rows}));
    return [tensor, inputs, rows = part.rows](int64_t row, Bf16* target) {
      for (int64_t i = 0; i < inputs; ++i) target[i] = ToBf16(FloatAt(tensor, i * rows + row));
    };
  }

  absl::StatusOr<WeightMatrix> Quantised(const MatrixPlan& plan) {
    if (plan.lm_head ? forms_.lm_head.has_value() : forms_.layers.has_value()) {
      return InvalidArgument(
          "tensor {} is quantised already, and weights asks to round it again; use "
          "weights=checkpoint",
          QuantisedNameOf(source_, plan.parts[0].module));
    }
    std::vector<ReadPart> parts;
    for (const MatrixPart& part : plan.parts) {
      ASSIGN_OR_RETURN(
          QuantisedTensor tensor,
          ReadQuantised(config_.quantisation, source_, part.module, part.rows, plan.stored_inputs));
      parts.push_back({.part = &part, .tensor = std::move(tensor)});
    }
    if (plan.stacked && PartsTogether(parts) < parts.size()) return MakeSections(plan, parts);
    ASSIGN_OR_RETURN(QuantisedMatrix matrix, MakeSection(plan, parts, 0, plan.outputs));
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
