#include "kernels/quantised_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/bf16.h"
#include "kernels/f16.h"

namespace penstock {
namespace {

template <class T>
T LoadAt(const std::byte* array, int64_t index) {
  T value;
  std::memcpy(&value, array + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void StoreAt(std::byte* array, int64_t index, T value) {
  std::memcpy(array + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

float LoadScale(ScaleType type, const std::byte* scales, int64_t index) {
  if (type == ScaleType::kF32) return LoadAt<float>(scales, index);
  const auto bits = LoadAt<uint16_t>(scales, index);
  return type == ScaleType::kF16 ? HalfToFloat(bits) : ToFloat({bits});
}

void StoreScale(ScaleType type, std::byte* scales, int64_t index, float value) {
  if (type == ScaleType::kF32) {
    StoreAt(scales, index, value);
  } else {
    StoreAt(scales, index, type == ScaleType::kF16 ? FloatToHalf(value) : ToBf16(value).bits);
  }
  PENSTOCK_CHECK_EQ(LoadScale(type, scales, index), value);
}

// The byte of an output's code for input `input` of a group, from the group's first code.
int64_t CodeByte(int bits, int64_t output, int64_t input) {
  const int64_t word = bits == 4 ? input / 8 : input / 4;
  return word * 4 * QuantisedMatrix::kPanel + output * 4 + input % 4;
}

int CodeShift(int bits, int64_t input) { return bits == 4 && input / 4 % 2 == 1 ? 4 : 0; }

}  // namespace

std::string QuantisedFormat::Name() const {
  return fmt::format("int{} g{}{}", bits, group, zeros ? " asymmetric" : "");
}

QuantisedMatrix::QuantisedMatrix(int64_t outputs, int64_t inputs, const QuantisedFormat& format,
                                 std::vector<int32_t> order)
    : outputs_(outputs), inputs_(inputs), format_(format), order_(std::move(order)) {
  PENSTOCK_CHECK(format.bits == 4 || format.bits == 8);
  PENSTOCK_CHECK(format.group == 32 || format.group == 64 || format.group == 128 ||
                 format.group == 256);
  PENSTOCK_CHECK(order_.empty() || static_cast<int64_t>(order_.size()) == padded());
  for (const int32_t input : order_) PENSTOCK_CHECK_LT(input, inputs);
  memory_ = Buffer(static_cast<size_t>(panels() * stride()));
}

std::byte* QuantisedMatrix::Group(int64_t output, int64_t group) const {
  return memory_.as<std::byte>() + output / kPanel * stride() + group * format_.group_bytes();
}

void QuantisedMatrix::SetRow(int64_t output, const QuantisedRow& row) {
  PENSTOCK_CHECK_LT(output, outputs_);
  PENSTOCK_CHECK_EQ(static_cast<int64_t>(row.scales.size()), groups());
  PENSTOCK_CHECK_EQ(row.zeros.size(), format_.zeros ? row.scales.size() : 0);
  PENSTOCK_CHECK_LE(static_cast<int64_t>(row.codes.size()), padded());
  const int64_t column = output % kPanel, count = static_cast<int64_t>(row.codes.size());
  for (int64_t g = 0; g < groups(); ++g) {
    std::byte* group = Group(output, g);
    StoreScale(format_.scale, group, column, row.scales[g]);
    const int zero = format_.zeros ? row.zeros[g] : format_.zero();
    if (format_.zeros) group[format_.scale_bytes() + column] = std::byte(zero);
    std::byte* codes = group + format_.scale_bytes() + format_.zero_bytes();
    for (int64_t i = 0; i < format_.group; ++i) {
      const int64_t at = g * format_.group + i;
      const int code = at < count ? row.codes[at] : zero;
      std::byte& byte = codes[CodeByte(format_.bits, column, i)];
      const int shift = CodeShift(format_.bits, i);
      const auto keep = format_.bits == 8 ? std::byte(0) : std::byte(0xf0 >> shift);
      byte = (byte & keep) | std::byte(code << shift);
    }
  }
}

void QuantisedMatrix::GetRow(int64_t output, float* values) const {
  PENSTOCK_CHECK_LT(output, outputs_);
  const int64_t column = output % kPanel;
  const int mask = (1 << format_.bits) - 1;
  for (int64_t g = 0; g < groups(); ++g) {
    const std::byte* group = Group(output, g);
    const float scale = LoadScale(format_.scale, group, column);
    const int zero =
        format_.zeros ? std::to_integer<int>(group[format_.scale_bytes() + column]) : format_.zero();
    const std::byte* codes = group + format_.scale_bytes() + format_.zero_bytes();
    for (int64_t i = 0; i < format_.group; ++i) {
      const int64_t at = g * format_.group + i;
      const int64_t input = order_.empty() ? at : order_[at];
      if (input < 0 || input >= inputs_) continue;
      const int byte = std::to_integer<int>(codes[CodeByte(format_.bits, column, i)]);
      const int code = byte >> CodeShift(format_.bits, i) & mask;
      values[input] = scale * static_cast<float>(code - zero);
    }
  }
}

}  // namespace penstock
