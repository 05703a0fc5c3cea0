#include "lab/plan/weight_meter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/cuda/cuda_model_check.h"
#include "model/load/checkpoint_tensors.h"
#include "model/weights/formats/weight_kinds.h"
#include "model/weights/weight_filler.h"

namespace penstock {
namespace {

constexpr char kPlainForm[] = "bf16";  // checkpoints in f32 are rounded to it
constexpr double kPlainBytes = 2;

// The bytes of a quantised weight, with its share of scales, zero points and offsets.
double BytesPerWeight(const QuantisedFormat& format) {
  return static_cast<double>(format.run_bytes()) / (32.0 * format.group * format.run());
}

// Takes the place of a reader of weights: counts what it is asked for, and returns no weights.
class Meter final : public Filler {
 public:
  Meter(const QuantisationConfig& quantisation, const MatrixForms& forms,
        const TensorSource* source)
      : forms_(forms), source_(source) {
    if (source != nullptr) kinds_.emplace(quantisation, *source);
  }

  absl::StatusOr<WeightMatrix> Matrix(const MatrixPlan& plan) override {
    double stored_rows = 0;
    for (const MatrixPart& part : plan.parts) stored_rows += static_cast<double>(part.rows);
    const double padding = static_cast<double>(plan.outputs) / stored_rows;
    for (const MatrixPart& part : plan.parts) {
      ASSIGN_OR_RETURN(const auto format, FormatOf(plan, part));
      const double elements =
          padding * static_cast<double>(part.rows) * static_cast<double>(plan.inputs);
      WeightPart& sum = PartOf(plan, part.module);
      sum.elements += static_cast<uint64_t>(part.rows * plan.stored_inputs);
      sum.bytes += elements * (format ? BytesPerWeight(*format) : kPlainBytes);
      const double gpu_row = format ? GpuRowBytes(*format, plan.inputs)
                                    : kPlainBytes * static_cast<double>(plan.inputs);
      sum.gpu_bytes += padding * static_cast<double>(part.rows) * gpu_row;
      AddForm(sum, format ? format->Name() : kPlainForm);
      if (format && !CodeFormOf(*format)) AddExpanded(format->Name());
    }
    return WeightMatrix();
  }
  bool IsMatrix(const std::string& module) const override { return IsQuantised(module); }
  absl::Status Table(const std::string&, int64_t rows, int64_t columns, Bf16*) override {
    const auto elements = static_cast<uint64_t>(rows * columns);
    sizes_.tables.elements += elements;
    sizes_.tables.bytes += kPlainBytes * static_cast<double>(elements);
    sizes_.tables.gpu_bytes += kPlainBytes * static_cast<double>(elements);
    return absl::OkStatus();
  }
  // Falcon's layers with one norm load it twice.
  absl::Status Floats(const std::string& name, const std::vector<int64_t>& shape, float*) override {
    uint64_t elements = 1;
    for (const int64_t extent : shape) elements *= static_cast<uint64_t>(extent);
    if (vectors_.insert(name).second) sizes_.vectors.elements += elements;
    sizes_.vectors.bytes += sizeof(float) * static_cast<double>(elements);
    sizes_.vectors.gpu_bytes += sizeof(float) * static_cast<double>(elements);
    return absl::OkStatus();
  }

  WeightSizes Sizes() {
    sizes_.form = fmt::format("{}", fmt::join(layer_forms_, " and "));
    if (sizes_.form == kPlainForm && head_form_ == kPlainForm && table_form_.empty()) return sizes_;
    sizes_.form += ", lm_head " + head_form_;
    if (!table_form_.empty()) sizes_.form += ", embedding " + table_form_;
    return sizes_;
  }

 private:
  bool IsQuantised(const std::string& module) const {
    return source_ != nullptr && !QuantisedNameOf(*source_, module).empty();
  }

  // BuildWeights asks for the output matrix first, and then for the embeddings if they are
  // quantised.
  WeightPart& PartOf(const MatrixPlan& plan, const std::string& module) {
    if (!plan.lm_head) {
      return module.find(".experts.") == std::string::npos ? sizes_.layers : sizes_.experts;
    }
    return sizes_.head.elements == 0 ? sizes_.head : sizes_.tables;
  }

  void AddForm(const WeightPart& part, const std::string& name) {
    if (&part == &sizes_.head) head_form_ = name;
    if (&part == &sizes_.tables) table_form_ = name;
    if (&part == &sizes_.head || &part == &sizes_.tables) return;
    if (std::ranges::find(layer_forms_, name) == layer_forms_.end()) layer_forms_.push_back(name);
  }

  void AddExpanded(const std::string& name) {
    auto& forms = sizes_.expanded_forms;
    if (std::ranges::find(forms, name) == forms.end()) forms.push_back(name);
  }

  absl::StatusOr<std::optional<QuantisedFormat>> FormatOf(const MatrixPlan& plan,
                                                          const MatrixPart& part) {
    const auto& rounded = plan.lm_head ? forms_.lm_head : forms_.layers;
    const bool quantised = IsQuantised(part.module);
    if (plan.never_rounded && (!quantised || !rounded)) return std::nullopt;
    if (!quantised) return rounded;
    if (rounded) {
      return InvalidArgument(
          "tensor {} is quantised already, and --weights asks to round it again; use "
          "--weights=checkpoint",
          QuantisedNameOf(*source_, part.module));
    }
    ASSIGN_OR_RETURN(const QuantisedTensor described,
                     kinds_->Describe(part.module, part.rows, plan.stored_inputs));
    return described.format;
  }

  const MatrixForms& forms_;
  const TensorSource* const source_;
  std::optional<WeightKinds> kinds_;  // if there is a source
  std::set<std::string> vectors_;
  std::vector<std::string> layer_forms_;
  std::string head_form_, table_form_;
  WeightSizes sizes_;
};

}  // namespace

WeightSizes WeightSizes::OnGpu() const {
  WeightSizes sizes = *this;
  for (WeightPart* part :
       {&sizes.layers, &sizes.experts, &sizes.head, &sizes.tables, &sizes.vectors}) {
    part->bytes = part->gpu_bytes;
  }
  return sizes;
}

absl::StatusOr<WeightSizes> MeasureWeights(const ModelConfig& config, const MatrixForms& forms,
                                           const TensorSource* source) {
  Meter meter(config.quantisation, forms, source);
  RETURN_IF_ERROR(BuildWeights(config, meter).status());
  return meter.Sizes();
}

absl::StatusOr<WeightSizes> MeasureModel(const std::string& model, const ModelConfig& config,
                                         WeightPolicy policy) {
  const MatrixForms forms = FormsOf(policy);
  const bool plain = config.quantisation.method == QuantisationConfig::Method::kNone &&
                     !std::filesystem::is_regular_file(model);
  if (plain) return MeasureWeights(config, forms, nullptr);
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model));
  const CheckpointTensors tensors(checkpoint);
  return MeasureWeights(config, forms, &tensors);
}

}  // namespace penstock
