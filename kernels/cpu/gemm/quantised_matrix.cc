#include "kernels/quantised_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/bf16.h"
#include "kernels/e4m3.h"
#include "kernels/f16.h"

namespace penstock {
namespace {

constexpr size_t kGroupMax = 256;  // inputs

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
  if (type == ScaleType::kTwoLevel) return LoadAt<int8_t>(scales, index);
  const auto bits = LoadAt<uint16_t>(scales, index);
  return type == ScaleType::kF16 ? HalfToFloat(bits) : ToFloat({bits});
}

void StoreScale(ScaleType type, std::byte* scales, int64_t index, float value) {
  if (type == ScaleType::kF32) {
    StoreAt(scales, index, value);
  } else if (type == ScaleType::kTwoLevel) {
    PENSTOCK_CHECK(value >= -128 && value <= 127);
    StoreAt(scales, index, static_cast<int8_t>(value));
  } else {
    StoreAt(scales, index, type == ScaleType::kF16 ? FloatToHalf(value) : ToBf16(value).bits);
  }
  PENSTOCK_CHECK_EQ(LoadScale(type, scales, index), value);
}

constexpr CodeTable TableFrom(const std::array<int, 16>& values) {
  CodeTable table{};
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint8_t>(values[i] + 128);
  return table;
}

constexpr CodeTable kE2m1Table =
    TableFrom({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});
constexpr CodeTable kIq4Table =
    TableFrom({-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113});

// The places of the codes of one unit of inputs in an output's words (QuantisedMatrix): the low
// bits of each, and the high ones if codes have 5 or 6 bits.
class CodeUnit {
 public:
  explicit CodeUnit(const QuantisedFormat& format)
      : inputs_(format.unit()),
        words_(format.unit_words()),
        low_bits_(format.bits == 8 ? 8 : 4),
        high_bits_(format.bits - low_bits_),
        e4m3_(format.e4m3()) {}

  // Reads the code of input i of a group from the words of an output, which begin at `codes`.
  uint32_t Load(const std::byte* codes, int64_t i) const {
    const std::byte* unit = codes + i / inputs_ * words_ * kWordStride;
    const int at = static_cast<int>(i % inputs_);
    const uint32_t low = WordAt(unit, LowWord(at)) >> LowShift(at) & Mask(low_bits_);
    if (high_bits_ == 0) return low;
    return low | (WordAt(unit, words_ - 1) >> HighShift(at) & Mask(high_bits_)) << low_bits_;
  }

  // Stores the codes of inputs [0, count) of a group, a multiple of a unit, four at a time.
  void Store(const uint8_t* values, int64_t count, std::byte* codes) const {
    const uint32_t low_mask = low_bits_ == 8 ? 0xffffffffu : 0x0f0f0f0fu;
    const uint32_t high_mask = Mask(high_bits_) * 0x01010101u;
    for (int64_t first = 0; first < count; first += inputs_, codes += words_ * kWordStride) {
      uint32_t words[kWordsMax] = {};
      for (int at = 0; at < inputs_; at += 4) {
        uint32_t four =
            LoadAt<uint32_t>(reinterpret_cast<const std::byte*>(values + first + at), 0);
        if (e4m3_) four = (four & 0xff0000ffu) | (four >> 8 & 0xff00u) | (four << 8 & 0xff0000u);
        words[LowWord(at)] |= (four & low_mask) << at % 8 / 4 * 4;
        if (high_bits_ > 0) words[words_ - 1] |= (four >> 4 & high_mask) << at / 4 * high_bits_;
      }
      for (int w = 0; w < words_; ++w) StoreAt(codes + w * kWordStride, 0, words[w]);
    }
  }

 private:
  static constexpr int kWordsMax = 5;
  // From an output's word to its next one.
  static constexpr int64_t kWordStride = 4 * QuantisedMatrix::kPanel;

  static uint32_t Mask(int bits) { return (1u << bits) - 1; }
  static uint32_t WordAt(const std::byte* unit, int word) {
    return LoadAt<uint32_t>(unit + word * kWordStride, 0);
  }
  int LowWord(int at) const { return low_bits_ == 8 ? 0 : at / 8; }
  int LowShift(int at) const {
    if (e4m3_) return (at % 2 * 2 + at / 2) * 8;
    return at % 4 * 8 + at % 8 / 4 * 4;
  }
  int HighShift(int at) const { return at % 4 * 8 + at / 4 * high_bits_; }

  int inputs_;
  int words_;
  int low_bits_;
  int high_bits_;
  bool e4m3_;
};

// One group of one output in a panel.
struct GroupPlace {
  const QuantisedFormat& format;
  std::byte* head;  // of its run
  int64_t index;    // in the run
  int64_t column;   // of the output in the panel

  std::byte* scales() const { return head + format.scales_at() + index * format.scale_bytes(); }
  std::byte* offsets() const { return head + format.offsets_at() + index * format.offset_bytes(); }
  std::byte* codes() const {  // of the output
    return head + format.head_bytes() + index * format.code_bytes() + 4 * column;
  }
  ScaleType offset_type() const { return format.two_level() ? format.scale : ScaleType::kF32; }

  float Factor(const std::byte* factors) const {
    return format.two_level() ? LoadScale(ScaleType::kF16, factors, column) : 1.0f;
  }
  float Scale() const { return Factor(head) * LoadScale(format.scale, scales(), column); }
  float Offset() const {
    if (!format.offsets) return 0;
    return Factor(head + kOffsetFactorsAt) * LoadScale(offset_type(), offsets(), column);
  }
  int Zero() const {
    if (!format.zeros) return format.zero();
    return std::to_integer<int>(head[format.zeros_at() + column]);
  }
};

void CheckFormat(const QuantisedFormat& format) {
  PENSTOCK_CHECK(format.bits == 8 || (format.bits >= 4 && format.bits <= 6));
  PENSTOCK_CHECK(format.group == 16 || format.group == 32 || format.group == 64 ||
                 format.group == 128 || format.group == 256);
  PENSTOCK_CHECK_EQ(format.group % format.unit(), 0);
  if (format.e4m3()) {
    PENSTOCK_CHECK(format.bits == 8 && format.scale == ScaleType::kF32);
    PENSTOCK_CHECK(!format.zeros && !format.offsets);
  }
  if (format.table() != nullptr) {
    PENSTOCK_CHECK(format.bits == 4 && !format.zeros && !format.offsets);
  }
  PENSTOCK_CHECK(!format.two_level() || !format.zeros);
}

}  // namespace

const CodeTable* TableOf(CodeType type) {
  if (type == CodeType::kE2m1) return &kE2m1Table;
  return type == CodeType::kIq4 ? &kIq4Table : nullptr;
}

std::string QuantisedFormat::Name() const {
  if (table() != nullptr)
    return fmt::format("{} g{}", code == CodeType::kE2m1 ? "fp4" : "iq4", group);
  if (e4m3()) return fmt::format("fp8 g{}", group);
  return fmt::format("int{} g{}{}", bits, group, offsets ? " offset" : zeros ? " asymmetric" : "");
}

QuantisedMatrix::QuantisedMatrix(int64_t outputs, int64_t inputs, const QuantisedFormat& format,
                                 std::vector<int32_t> order)
    : QuantisedMatrix(WithoutPanels(outputs, inputs, format, std::move(order))) {
  memory_ = Buffer(memory_bytes());
}

QuantisedMatrix QuantisedMatrix::WithoutPanels(int64_t outputs, int64_t inputs,
                                               const QuantisedFormat& format,
                                               std::vector<int32_t> order) {
  CheckFormat(format);
  QuantisedMatrix matrix;
  matrix.outputs_ = outputs;
  matrix.inputs_ = inputs;
  matrix.format_ = format;
  matrix.order_ = std::move(order);
  PENSTOCK_CHECK(!format.e4m3() || (matrix.order_.empty() && inputs % 2 == 0));
  PENSTOCK_CHECK(matrix.order_.empty() ||
                 static_cast<int64_t>(matrix.order_.size()) == matrix.padded());
  for (const int32_t input : matrix.order_) PENSTOCK_CHECK_LT(input, inputs);
  return matrix;
}

QuantisedMatrix QuantisedMatrix::Over(Buffer memory) const {
  PENSTOCK_CHECK(memory.bytes() == 0 || memory.bytes() == memory_bytes());
  QuantisedMatrix matrix = WithoutPanels(outputs_, inputs_, format_, order_);
  matrix.memory_ = std::move(memory);
  return matrix;
}

std::byte* QuantisedMatrix::Run(int64_t output, int64_t run) const {
  return memory_.as<std::byte>() + output / kPanel * stride() + run * format_.run_bytes();
}

void QuantisedMatrix::SetRow(int64_t output, const QuantisedRow& row) {
  PENSTOCK_CHECK_LT(output, outputs_);
  PENSTOCK_CHECK_EQ(static_cast<int64_t>(row.scales.size()), groups());
  PENSTOCK_CHECK_EQ(row.zeros.size(), format_.zeros ? row.scales.size() : 0);
  PENSTOCK_CHECK_EQ(row.offsets.size(), format_.offsets ? row.scales.size() : 0);
  PENSTOCK_CHECK_LE(static_cast<int64_t>(row.codes.size()), padded());
  SetFactors(output, row);
  const int64_t column = output % kPanel, count = static_cast<int64_t>(row.codes.size());
  const CodeUnit unit(format_);
  const int64_t in_run = format_.run();
  std::byte* head = nullptr;
  for (int64_t g = 0; g < std::ssize(row.scales); ++g) {
    if (g % in_run == 0) head = Run(output, g / in_run);
    const GroupPlace place{format_, head, g % in_run, column};
    StoreScale(format_.scale, place.scales(), column, row.scales[g]);
    const int zero = format_.zeros ? row.zeros[g] : format_.zero();
    if (format_.zeros) place.head[format_.zeros_at() + column] = std::byte(zero);
    if (format_.offsets) {
      StoreScale(place.offset_type(), place.offsets(), column, row.offsets[g]);
    }
    // The activations of missing codes are 0, so those of a table stand for anything.
    const int missing = format_.table() != nullptr ? 0 : zero;
    const int64_t first = g * format_.group;
    if (first + format_.group <= count) {
      unit.Store(row.codes.data() + first, format_.group, place.codes());
      continue;
    }
    std::array<uint8_t, kGroupMax> last;
    last.fill(static_cast<uint8_t>(missing));
    std::copy(row.codes.begin() + std::min(first, count), row.codes.end(), last.begin());
    unit.Store(last.data(), format_.group, place.codes());
  }
}

void QuantisedMatrix::SetFactors(int64_t output, const QuantisedRow& row) {
  const int64_t count = format_.two_level() ? runs() : 0, column = output % kPanel;
  PENSTOCK_CHECK_EQ(static_cast<int64_t>(row.scale_factors.size()), count);
  PENSTOCK_CHECK_EQ(static_cast<int64_t>(row.offset_factors.size()), format_.offsets ? count : 0);
  for (int64_t run = 0; run < count; ++run) {
    std::byte* head = Run(output, run);
    StoreScale(ScaleType::kF16, head, column, row.scale_factors[run]);
    if (!format_.offsets) continue;
    StoreScale(ScaleType::kF16, head + kOffsetFactorsAt, column, row.offset_factors[run]);
  }
}

QuantisedRowCopy QuantisedMatrix::CopyRow(int64_t output) const {
  PENSTOCK_CHECK_LT(output, outputs_);
  const int64_t column = output % kPanel;
  const CodeUnit unit(format_);
  QuantisedRowCopy row{.codes = std::vector<uint8_t>(static_cast<size_t>(padded()))};
  for (int64_t g = 0; g < groups(); ++g) {
    const GroupPlace place{format_, Run(output, g / format_.run()), g % format_.run(), column};
    row.scales.push_back(place.Scale());
    if (format_.zeros) row.zeros.push_back(static_cast<uint8_t>(place.Zero()));
    if (format_.offsets) row.offsets.push_back(place.Offset());
    const std::byte* codes = place.codes();
    for (int64_t i = 0; i < format_.group; ++i) {
      row.codes[g * format_.group + i] = static_cast<uint8_t>(unit.Load(codes, i));
    }
  }
  return row;
}

void QuantisedMatrix::GetRow(int64_t output, float* values) const {
  PENSTOCK_CHECK_LT(output, outputs_);
  const int64_t column = output % kPanel;
  const CodeUnit unit(format_);
  for (int64_t g = 0; g < groups(); ++g) {
    const GroupPlace place{format_, Run(output, g / format_.run()), g % format_.run(), column};
    const float scale = place.Scale(), offset = place.Offset();
    const int zero = place.Zero();
    const std::byte* codes = place.codes();
    for (int64_t i = 0; i < format_.group; ++i) {
      const int64_t at = g * format_.group + i;
      const int64_t input = order_.empty() ? at : order_[at];
      if (input < 0 || input >= inputs_) continue;
      uint32_t code = unit.Load(codes, i);
      if (format_.table() != nullptr) code = (*format_.table())[code];
      const float number = format_.e4m3() ? E4m3ToFloat(static_cast<uint8_t>(code))
                                          : static_cast<float>(static_cast<int>(code) - zero);
      values[input] = std::fma(scale, number, offset);
    }
  }
}

}  // namespace penstock
