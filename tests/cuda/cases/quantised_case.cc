#include "tests/cuda/cases/quantised_case.h"

#include <array>
#include <cmath>
#include <random>

#include "kernels/cuda/quantised_gemm.h"
#include "kernels/e4m3.h"
#include "kernels/f16.h"
#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda {
namespace {

// A scale that the form holds exactly: one with 16 bits for pairs.
float RoundScale(const CodeForm& form, float scale) {
  if (form.code == WeightCode::kE2m1) return ToFloat(ToBf16(scale));
  return form.pairs ? HalfToFloat(FloatToHalf(scale)) : scale;
}

// Twice the number of E2M1.
float TwiceE2m1(uint8_t code) {
  constexpr float kNumbers[] = {0, 1, 2, 3, 4, 6, 8, 12};
  return code < 8 ? kNumbers[code] : -kNumbers[code - 8];
}

// The codes of a weight on the host, row-major.
struct HostCodes {
  HostCodes(const QuantisedCase& c, int32_t count) : of(c), outputs(count) {
    std::mt19937_64 random(c.seed + static_cast<uint64_t>(count));
    std::uniform_real_distribution<float> uniform(-0.1f, 0.1f);
    groups = (c.inputs + c.form.group - 1) / c.form.group;
    const int64_t all_groups = int64_t{count} * groups;
    for (int64_t i = 0; i < int64_t{count} * c.inputs; ++i) {
      auto code = static_cast<uint8_t>(random() % (1u << c.form.bits()));
      // E4M3 has two NaNs.
      if (c.form.code == WeightCode::kE4m3 && (code & 0x7f) == 0x7f) code = 0x7e;
      codes.push_back(code);
    }
    for (int64_t i = 0; i < all_groups; ++i) {
      scales.push_back(RoundScale(c.form, uniform(random)));
      if (c.form.zeros) zeros.push_back(static_cast<uint8_t>(random() % (1u << c.form.bits())));
      if (c.form.offsets) offsets.push_back(uniform(random));
    }
  }

  CodeRow Row(int64_t row) const {
    const auto of_groups = [&](const auto& values) {
      return values.empty() ? std::span(values) : std::span(values).subspan(row * groups, groups);
    };
    return {.codes = std::span(codes).subspan(row * of.inputs, of.inputs),
            .scales = of_groups(scales),
            .zeros = of_groups(zeros),
            .offsets = of_groups(offsets)};
  }

  float Value(int64_t row, int64_t input) const {
    const int64_t group = row * groups + input / of.form.group;
    const uint8_t code = codes[row * of.inputs + input];
    const int zero = of.form.zeros ? zeros[group] : of.form.zero;
    const float number = of.form.code == WeightCode::kE4m3   ? E4m3ToFloat(code)
                         : of.form.code == WeightCode::kE2m1 ? TwiceE2m1(code)
                                                             : static_cast<float>(code - zero);
    return std::fma(scales[group], number, of.form.offsets ? offsets[group] : 0.0f);
  }

  std::vector<Bf16> Values() const {
    std::vector<Bf16> values;
    for (int64_t i = 0; i < int64_t{outputs} * of.inputs; ++i) {
      values.push_back(ToBf16(Value(i / of.inputs, i % of.inputs)));
    }
    return values;
  }

  std::vector<std::byte> Pack() const {
    const int64_t panel_bytes = ChunksOf(of.inputs) * of.form.chunk_bytes();
    std::vector<std::byte> packed(PanelsOf(outputs) * panel_bytes);
    for (int64_t panel = 0; panel < PanelsOf(outputs); ++panel) {
      std::array<CodeRow, kCodePanel> rows;
      for (int64_t i = 0; i < kCodePanel && panel * kCodePanel + i < outputs; ++i) {
        rows[i] = Row(panel * kCodePanel + i);
      }
      PackPanel(of.form, of.inputs, rows, packed.data() + panel * panel_bytes);
    }
    return packed;
  }

  const QuantisedCase& of;
  const int32_t outputs;
  int64_t groups = 0;
  std::vector<uint8_t> codes, zeros;
  std::vector<float> scales, offsets;
};

std::vector<float> ReadProduct(const DeviceArray<float>& output, const Product& product,
                               size_t size) {
  const std::vector<float> slices = output.Read();
  std::vector<float> sum(size);
  for (size_t i = 0; i < size; ++i) {
    for (int s = 0; s < product.slices; ++s) sum[i] += slices[s * product.slice_stride + i];
  }
  return sum;
}

double Deviation(const QuantisedCase& c, const std::vector<Bf16>& x, const std::vector<Bf16>& w,
                 const std::vector<float>& got) {
  double error = 0, reference = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const Bf16* row = x.data() + i / c.outputs * c.inputs;
    const Bf16* column = w.data() + i % c.outputs * c.inputs;
    double want = 0;
    for (int k = 0; k < c.inputs; ++k) want += double{ToFloat(row[k])} * ToFloat(column[k]);
    error += (got[i] - want) * (got[i] - want);
    reference += want * want;
  }
  return std::sqrt(error / reference);
}

}  // namespace

QuantisedResult RunQuantised(const QuantisedCase& c, const Bf16Product& multiply) {
  const int32_t second = c.outputs / 2;
  const std::array<HostCodes, 2> host = {HostCodes(c, c.outputs - second), HostCodes(c, second)};
  QuantisedResult result;
  for (const HostCodes& part : host) {
    const std::vector<Bf16> values = part.Values();
    result.reference.insert(result.reference.end(), values.begin(), values.end());
  }
  std::mt19937_64 random(c.seed);
  std::normal_distribution<float> normal;
  std::vector<Bf16> x(size_t{1} * c.rows * c.inputs);
  for (Bf16& value : x) value = ToBf16(normal(random));
  const DeviceArray<Bf16> input(x);
  const DeviceArray<std::byte> first_codes(host[0].Pack()), second_codes(host[1].Pack());
  const std::array<WeightCodes, 2> sections = {
      {{reinterpret_cast<const uint8_t*>(first_codes.data()), c.form, 0, c.outputs - second},
       {reinterpret_cast<const uint8_t*>(second_codes.data()), c.form, c.outputs - second,
        second}}};
  const Weight weight{.outputs = c.outputs,
                      .inputs = c.inputs,
                      .sections = sections.data(),
                      .section_count = sections.size()};
  const size_t size = size_t{1} * c.rows * c.outputs;
  const DeviceArray<float> output(size * SkinnySlices(weight));
  const Product product = QuantisedGemm(weight, input.data(), c.rows, output.data(), nullptr);
  ExpectNoDeviceError("a product with a quantised weight");
  result.product = ReadProduct(output, product, size);
  const DeviceArray<Bf16> expanded(result.reference.size());
  ExpandWeight(weight, expanded.data(), nullptr);
  ExpectNoDeviceError("the expansion of a weight");
  result.expanded = expanded.Read();
  const Weight bf16{.data = expanded.data(), .outputs = c.outputs, .inputs = c.inputs};
  const Product of_bf16 = multiply ? multiply(bf16, input.data(), c.rows, output.data())
                                   : Gemm(bf16, input.data(), c.rows, output.data(), nullptr);
  ExpectNoDeviceError("a product with an expanded weight");
  result.of_bf16 = ReadProduct(output, of_bf16, size);
  result.relative = Deviation(c, x, result.reference, result.product);
  return result;
}

RandomCodes MakeRandomCodes(const QuantisedCase& c) {
  const HostCodes host(c, c.outputs);
  return {.panels = host.Pack(), .weights = host.Values()};
}

std::vector<CodeForm> AllForms(InputOrder order) {
  using enum WeightCode;
  return {
      {.code = kInt8, .order = order, .zero = 128, .group = 128},
      {.code = kInt8, .order = order, .zeros = true, .group = 32},
      {.code = kInt8, .order = order, .offsets = true, .group = 64},
      {.code = kInt8, .order = order, .zero = 32, .group = 16},
      {.code = kInt8, .order = order, .zeros = true, .offsets = true, .group = 16},
      {.code = kInt4, .order = order, .pairs = true, .zero = 8, .group = 32},
      {.code = kInt4, .order = order, .pairs = true, .zeros = true, .group = 128},
      {.code = kInt4, .order = order, .pairs = true, .zero = 8, .group = 64},
      {.code = kInt4, .order = order, .offsets = true, .group = 32},
      {.code = kInt4, .order = order, .zeros = true, .group = 128},
      {.code = kE4m3, .order = order, .group = 128},
      {.code = kE2m1, .order = order, .group = 32},
  };
}

std::string NameOf(const CodeForm& form) {
  const char* const codes[] = {"int8", "int4", "fp8", "fp4"};
  return std::string(codes[static_cast<int>(form.code)]) + " g" + std::to_string(form.group) +
         (form.pairs ? " pairs" : "") + (form.zeros ? " zeros" : "") +
         (form.offsets ? " offsets" : "") +
         (form.order == InputOrder::kNatural ? " natural" : " own");
}

}  // namespace penstock::cuda
