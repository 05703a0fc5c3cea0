#include <cstring>

#include "model/gguf/gguf_file.h"

namespace penstock {
namespace {

template <class T>
T NumberAt(std::span<const std::byte> numbers, size_t i) {
  T value;
  std::memcpy(&value, numbers.data() + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

std::optional<int64_t> GgufValue::Int(size_t i) const {
  switch (type) {
    case GgufType::kU8:
      return NumberAt<uint8_t>(numbers, i);
    case GgufType::kI8:
      return NumberAt<int8_t>(numbers, i);
    case GgufType::kU16:
      return NumberAt<uint16_t>(numbers, i);
    case GgufType::kI16:
      return NumberAt<int16_t>(numbers, i);
    case GgufType::kU32:
      return NumberAt<uint32_t>(numbers, i);
    case GgufType::kI32:
      return NumberAt<int32_t>(numbers, i);
    case GgufType::kI64:
      return NumberAt<int64_t>(numbers, i);
    case GgufType::kU64: {
      const auto value = NumberAt<uint64_t>(numbers, i);
      if (value > uint64_t{INT64_MAX}) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufValue::Float(size_t i) const {
  if (type == GgufType::kF32) return NumberAt<float>(numbers, i);
  if (type == GgufType::kF64) return NumberAt<double>(numbers, i);
  const std::optional<int64_t> integer = Int(i);
  if (!integer) return std::nullopt;
  return static_cast<double>(*integer);
}

std::optional<bool> GgufValue::Bool(size_t i) const {
  if (type != GgufType::kBool) return std::nullopt;
  const auto value = NumberAt<uint8_t>(numbers, i);
  if (value > 1) return std::nullopt;
  return value == 1;
}

}  // namespace penstock
