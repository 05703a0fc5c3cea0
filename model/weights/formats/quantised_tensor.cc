#include "model/weights/formats/quantised_tensor.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace penstock {

QuantisedRow QuantisedTensor::Row(int64_t row) const {
  // The part of `values`, [rows][width], that belongs to this row; empty if they are.
  const auto of_row = [row](const auto& values, int64_t width) {
    const auto first = static_cast<size_t>(row * width), count = static_cast<size_t>(width);
    return values.empty() ? std::span(values) : std::span(values).subspan(first, count);
  };
  return {.codes = of_row(codes, inputs),
          .scales = of_row(scales, groups()),
          .zeros = of_row(zeros, groups()),
          .offsets = of_row(offsets, groups()),
          .scale_factors = of_row(scale_factors, runs()),
          .offset_factors = of_row(offset_factors, runs())};
}

void QuantisedTensor::MultiplyFactors() {
  PENSTOCK_CHECK(format.two_level());
  const int64_t width = groups(), run = format.run(), run_count = runs();
  const auto multiply = [&](std::vector<float>& values, std::vector<float>& factors) {
    for (int64_t i = 0; i < std::ssize(values); ++i) {
      values[static_cast<size_t>(i)] *=
          factors[static_cast<size_t>(i / width * run_count + i % width / run)];
    }
    factors.clear();
  };
  multiply(scales, scale_factors);
  multiply(offsets, offset_factors);
  format.scale = ScaleType::kF32;
}

void QuantisedTensor::Widen(int bits) {
  PENSTOCK_CHECK(format.code == CodeType::kInteger && zeros.empty() && bits >= format.bits);
  const int zero = format.zero();
  format.bits = bits;
  for (uint8_t& code : codes) code = static_cast<uint8_t>(code + format.zero() - zero);
}

absl::StatusOr<GroupShape> GroupShapeOf(int64_t size, int64_t inputs, const std::string& field) {
  constexpr int kGroups[] = {32, 64, 128, 256};
  if (size == 0) {
    int group = kGroups[0];
    for (const int wider : kGroups) {
      if (group < inputs) group = wider;
    }
    return GroupShape{
        .stored = std::max<int64_t>(inputs, group), .stored_count = 1, .group = group};
  }
  GroupShape shape{.stored = size, .stored_count = (inputs + size - 1) / size};
  for (const int group : kGroups) {
    if (size == group || (group == 256 && size % group == 0)) shape.group = group;
  }
  if (shape.group > 0) return shape;
  return InvalidArgument(
      "{} has groups of {} inputs, allowed are 32, 64, 128, multiples of 256, and whole rows",
      field, size);
}

absl::StatusOr<int> BitsOfWords(int64_t words, int64_t values, const std::string& tensor) {
  for (const int bits : {4, 8}) {
    if (words == (values * bits + 31) / 32) return bits;
  }
  return InvalidArgument(
      "tensor {} has {} words for {} values, allowed are codes of 4 bits ({} words) and of 8 bits "
      "({} words)",
      tensor, words, values, (values * 4 + 31) / 32, (values * 8 + 31) / 32);
}

std::string QuantisedNameOf(const TensorSource& source, const std::string& module) {
  for (const char* suffix : {".weight_packed", ".qweight", ".blocks"}) {
    if (source.Has(module + suffix)) return module + suffix;
  }
  std::string bytes = module + ".weight";
  if (source.HasBlocks(bytes)) return bytes;
  const bool scaled =
      source.Has(module + ".weight_scale") || source.Has(module + ".weight_scale_inv");
  return scaled && source.Has(bytes) ? bytes : "";
}

absl::StatusOr<QuantisedTensor> ReadQuantised(const QuantisationConfig& config,
                                              const TensorSource& source, const std::string& module,
                                              int64_t rows, int64_t inputs, int threads) {
  using Method = QuantisationConfig::Method;
  const std::string name = QuantisedNameOf(source, module);
  if (source.HasBlocks(name)) return ReadBlocks(source, module, rows, inputs, threads);
  const bool columns = name.ends_with(".qweight"), mxfp4 = name.ends_with(".blocks");
  if (mxfp4 && config.method == Method::kMxfp4) {
    return ReadMxfp4Rows(source, module, rows, inputs);
  }
  if (columns && config.method == Method::kGptq) {
    return ReadGptq(config, source, module, rows, inputs);
  }
  if (columns && config.method == Method::kAwq) {
    return ReadAwq(config, source, module, rows, inputs);
  }
  if (name.ends_with(".weight") && config.floats) {
    ASSIGN_OR_RETURN(const TensorView found, source.Get(name));
    if (config.method == Method::kFp8 || found.dtype == TensorDtype::kE4m3) {
      return ReadE4m3Rows(config, source, module, rows, inputs);
    }
  }
  if (!columns && !mxfp4 && config.method == Method::kCompressedTensors) {
    const bool packed = name.ends_with(".weight_packed");
    return packed ? ReadPackedRows(config, source, module, rows, inputs)
                  : ReadByteRows(config, source, module, rows, inputs);
  }
  return InvalidArgument(
      "tensor {} is quantised in the way of {}, and quantization_config.quant_method in "
      "config.json "
      "is {}",
      name,
      columns ? "GPTQ or AWQ"
      : mxfp4 ? "mxfp4"
              : "compressed-tensors or fp8",
      MethodName(config.method));
}

absl::Status FillOrder(const TensorView& group_of_input, const std::string& name,
                       const GroupShape& shape, QuantisedTensor& tensor) {
  std::vector<int32_t> order(static_cast<size_t>(tensor.inputs));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t i) { return WordAt(group_of_input, i); });
  bool ascending = true;
  for (int64_t i = 0; i < tensor.inputs; ++i) {
    const int32_t input = order[static_cast<size_t>(i)];
    const uint32_t group = WordAt(group_of_input, input);
    if (group != static_cast<uint64_t>(i / shape.stored)) {
      return InvalidArgument(
          "tensor {} puts input {} into group {}; every group but the last must have {} inputs",
          name, input, group, shape.stored);
    }
    ascending = ascending && input == i;
  }
  if (ascending) return absl::OkStatus();
  order.resize(static_cast<size_t>(tensor.groups() * tensor.format.group), -1);
  tensor.order = std::move(order);
  return absl::OkStatus();
}

}  // namespace penstock
