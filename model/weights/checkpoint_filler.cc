#include <algorithm>
#include <vector>

#include "base/check.h"
#include "model/weights/formats/row_ranges.h"
#include "model/weights/formats/weight_kinds.h"
#include "model/weights/weight_filler.h"

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

// True if one matrix can hold both formats. The integers of the one with fewer bits then take the
// bits of the other.
bool FitWidened(const QuantisedFormat& a, QuantisedFormat b) {
  if (a.code != CodeType::kInteger || a.zeros || b.zeros) return FitTogether(a, b);
  b.bits = a.bits;
  return FitTogether(a, b);
}

// The format that holds the rows of all parts exactly. INVALID_ARGUMENT names two parts that cannot
// be in one matrix.
absl::StatusOr<QuantisedFormat> CommonFormat(std::span<const ReadPart> parts) {
  QuantisedFormat format = parts[0].tensor.format;
  for (const ReadPart& other : parts.subspan(1)) {
    const QuantisedFormat& form = other.tensor.format;
    if (!FitWidened(form, format)) {
      return InvalidArgument("{} is {} and {} is {}; the parts of one product must have one format",
                             parts[0].part->module, format.Name(), other.part->module, form.Name());
    }
    if (other.tensor.order != parts[0].tensor.order) {
      return InvalidArgument(
          "{} and {} have their inputs in different orders (g_idx); the parts of one product must "
          "have one order",
          parts[0].part->module, other.part->module);
    }
    format.bits = std::max(format.bits, form.bits);
    format.zeros = format.zeros || form.zeros;
    if (form.scale != format.scale) format.scale = ScaleType::kF32;
  }
  return format;
}

void SetRows(ReadPart& from, int64_t first_row, int threads, QuantisedMatrix& matrix) {
  QuantisedTensor& tensor = from.tensor;
  if (tensor.format.two_level() && !matrix.format().two_level()) tensor.MultiplyFactors();
  if (tensor.format.bits < matrix.format().bits) tensor.Widen(matrix.format().bits);
  const std::vector<uint8_t> symmetric(static_cast<size_t>(tensor.groups()),
                                       static_cast<uint8_t>(tensor.format.zero()));
  const auto set = [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      QuantisedRow row = tensor.Row(r);
      if (matrix.format().zeros && row.zeros.empty()) row.zeros = symmetric;
      matrix.SetRow(from.part->at(r) - first_row, row);
    }
    return absl::OkStatus();
  };
  PENSTOCK_CHECK(ForRowRanges(threads, from.part->rows, set).ok());
}

// Parts that are one matrix, whose first output is output `first` of the plan.
struct Section {
  std::span<ReadPart> parts;
  int64_t first = 0;
  int64_t outputs = 0;
  QuantisedFormat format;
};

QuantisedMatrix MakeMatrix(const MatrixPlan& plan, const Section& section, int threads) {
  QuantisedMatrix matrix(section.outputs, plan.inputs, section.format,
                         section.parts[0].tensor.order);
  for (ReadPart& part : section.parts) SetRows(part, section.first, threads, matrix);
  return matrix;
}

// The number of parts from the front on that are one matrix. Those of fewer bits are widened only
// where a matrix would end within a panel.
size_t PartsTogether(std::span<const ReadPart> parts) {
  size_t count = 1;
  int64_t outputs = parts[0].part->rows;
  const auto fits = [&](const ReadPart& next) {
    const QuantisedFormat &first = parts[0].tensor.format, &form = next.tensor.format;
    const bool whole = outputs % QuantisedMatrix::kPanel == 0;
    return whole ? FitTogether(form, first) : FitWidened(form, first);
  };
  while (count < parts.size() && fits(parts[count])) outputs += parts[count++].part->rows;
  return count;
}

// Parts of different formats, one section for each run of parts that fit together.
absl::StatusOr<std::vector<Section>> CutIntoSections(std::span<ReadPart> parts) {
  std::vector<Section> sections;
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
    ASSIGN_OR_RETURN(const QuantisedFormat format, CommonFormat(parts.first(count)));
    sections.push_back(
        {.parts = parts.first(count), .first = first, .outputs = outputs, .format = format});
    first += outputs;
    parts = parts.subspan(count);
  }
  return sections;
}

absl::StatusOr<std::vector<Section>> SectionsOf(const MatrixPlan& plan, std::span<ReadPart> parts) {
  if (plan.stacked && PartsTogether(parts) < parts.size()) return CutIntoSections(parts);
  ASSIGN_OR_RETURN(const QuantisedFormat format, CommonFormat(parts));
  return std::vector<Section>{{.parts = parts, .outputs = plan.outputs, .format = format}};
}

// Where 16-bit matrices are to be. Quantised and rounded ones are always in memory.
enum class Placement { kMemory, kFiles };

class CheckpointFiller final : public Filler {
 public:
  CheckpointFiller(const ModelConfig& config, const TensorSource& source, const MatrixForms& forms,
                   Placement placement, int threads)
      : source_(source),
        quantisation_(config.quantisation),
        forms_(forms),
        placement_(placement),
        threads_(threads) {}

  absl::StatusOr<WeightMatrix> Matrix(const MatrixPlan& plan) override {
    const auto quantised = std::ranges::count_if(
        plan.parts, [&](const MatrixPart& part) { return IsQuantised(part.module); });
    if (quantised == 0) return Unquantised(plan);
    if (quantised == std::ssize(plan.parts)) return Quantised(plan);
    return InvalidArgument(
        "{} of the {} parts of one product from {} on are quantised; all or none must be",
        quantised, plan.parts.size(), plan.parts[0].module);
  }
  bool IsMatrix(const std::string& module) const override {
    return placement_ == Placement::kFiles || IsQuantised(module);
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
  bool IsQuantised(const std::string& module) const {
    return !QuantisedNameOf(source_, module).empty();
  }

  absl::StatusOr<WeightMatrix> Unquantised(const MatrixPlan& plan) {
    const OpenPart open = [&](const MatrixPart& part) {
      return plan.transposed ? TransposedRows(part, plan.stored_inputs)
                             : Rows(part, plan.stored_inputs);
    };
    const bool rounded = plan.lm_head ? forms_.lm_head.has_value() : forms_.layers.has_value();
    return placement_ == Placement::kFiles && !rounded ? StoreMatrix(plan, open)
                                                       : FillMatrix(plan, forms_, open, threads_);
  }

  absl::StatusOr<ReadRow> Rows(const MatrixPart& part, int64_t inputs) {
    ASSIGN_OR_RETURN(const TensorView tensor,
                     GetFloats(source_, part.module + ".weight", {part.rows, inputs}));
    return [tensor, inputs](int64_t row, int64_t first, int64_t count, Bf16* target) {
      ToBf16s(tensor, tensor.StoredRow(row) * inputs + first, count, target);
    };
  }

  absl::StatusOr<ReadRow> TransposedRows(const MatrixPart& part, int64_t inputs) {
    ASSIGN_OR_RETURN(const TensorView tensor,
                     GetFloats(source_, part.module + ".weight", {inputs, part.rows}));
    return [tensor, rows = part.rows](int64_t row, int64_t first, int64_t count, Bf16* target) {
      for (int64_t i = 0; i < count; ++i) {
        target[i] = ToBf16(FloatAt(tensor, (first + i) * rows + row));
      }
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
      ASSIGN_OR_RETURN(QuantisedTensor tensor,
                       ReadQuantised(quantisation_, source_, part.module, part.rows,
                                     plan.stored_inputs, threads_));
      parts.push_back({.part = &part, .tensor = std::move(tensor)});
    }
    ASSIGN_OR_RETURN(const std::vector<Section> sections, SectionsOf(plan, parts));
    WeightMatrix::Sections matrices;
    for (const Section& section : sections) {
      matrices.push_back(MakeMatrix(plan, section, threads_));
    }
    return WeightMatrix(std::move(matrices));
  }

  const TensorSource& source_;
  const QuantisationConfig& quantisation_;
  const MatrixForms forms_;
  const Placement placement_;
  const int threads_;
};

}  // namespace

std::unique_ptr<Filler> MakeCheckpointFiller(const ModelConfig& config, const TensorSource& source,
                                             const MatrixForms& forms, int threads) {
  return std::make_unique<CheckpointFiller>(config, source, forms, Placement::kMemory, threads);
}

absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const TensorSource& source,
                                    const MatrixForms& forms) {
  CheckpointFiller filler(config, source, forms, Placement::kMemory, /*threads=*/1);
  return BuildWeights(config, filler);
}

absl::StatusOr<Weights> StoreWeights(const ModelConfig& config, const TensorSource& source,
                                     const MatrixForms& forms) {
  CheckpointFiller filler(config, source, forms, Placement::kFiles, /*threads=*/1);
  return BuildWeights(config, filler);
}

}  // namespace penstock
