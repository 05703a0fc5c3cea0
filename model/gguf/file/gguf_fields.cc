#include "model/gguf/file/gguf_fields.h"

#include "base/printable_name.h"
#include "base/utf8.h"

namespace penstock {
namespace {

std::string Shown(const GgufValue* value) {
  if (value == nullptr) return "absent";
  if (value->is_array) return fmt::format("an array of {} elements", value->count);
  if (value->type == GgufType::kString) return PrintableName(value->strings[0]);
  if (const auto boolean = value->Bool()) return *boolean ? "true" : "false";
  if (const auto integer = value->Int()) return fmt::format("{}", *integer);
  if (const auto number = value->Float()) return fmt::format("{:g}", *number);
  return "another kind of value";
}

bool IsInRange(std::optional<int64_t> value, int64_t min, int64_t max) {
  return value && *value >= min && *value <= max;
}
bool IsInRange(std::optional<double> value, double min, double max) {
  return value && *value >= min && *value <= max;
}

}  // namespace

void GgufFields::Fail(std::string_view key, std::string_view allowed) {
  Refuse(key, fmt::format("is {}, allowed is {}", Shown(file_.Find(key)), allowed));
}

void GgufFields::Refuse(std::string_view key, std::string_view reason) {
  if (!status_.ok()) return;
  status_ = InvalidArgument("{}: key {} {}", file_.name, PrintableName(key), reason);
}

const GgufValue* GgufFields::Need(std::string_view key, bool has_default) {
  const GgufValue* value = file_.Find(key);
  if (value == nullptr && !has_default) Refuse(key, "is missing");
  return value;
}

const GgufValue* GgufFields::NeedArray(std::string_view key, size_t max_count) {
  const GgufValue* value = Need(key, false);
  if (value == nullptr || (value->is_array && value->count <= max_count)) return value;
  Fail(key, fmt::format("an array of at most {} elements", max_count));
  return nullptr;
}

int64_t GgufFields::Int(std::string_view key, int64_t min, int64_t max,
                        std::optional<int64_t> absent) {
  const GgufValue* value = Need(key, absent.has_value());
  if (value == nullptr) return absent.value_or(min);
  if (!value->is_array && IsInRange(value->Int(), min, max)) return *value->Int();
  Fail(key, fmt::format("an integer from {} to {}", min, max));
  return min;
}

int64_t GgufFields::EqualInts(std::string_view key, int64_t min, int64_t max,
                              std::optional<int64_t> absent) {
  const GgufValue* value = file_.Find(key);
  if (value == nullptr || !value->is_array) return Int(key, min, max, absent);
  for (size_t i = 0; i < value->count; i++) {
    if (IsInRange(value->Int(i), min, max) && value->Int(i) == value->Int(0)) continue;
    Refuse(key, fmt::format("has other values from element {} on, allowed is one integer from {} "
                            "to {} for all layers",
                            i, min, max));
    return min;
  }
  if (value->count > 0) return *value->Int(0);
  Fail(key, "an integer");
  return min;
}

double GgufFields::Float(std::string_view key, double min, double max,
                         std::optional<double> absent) {
  const GgufValue* value = Need(key, absent.has_value());
  if (value == nullptr) return absent.value_or(min);
  if (!value->is_array && IsInRange(value->Float(), min, max)) return *value->Float();
  Fail(key, fmt::format("a number from {:g} to {:g}", min, max));
  return min;
}

bool GgufFields::Bool(std::string_view key, bool absent) {
  const GgufValue* value = file_.Find(key);
  if (value == nullptr) return absent;
  if (!value->is_array && value->Bool()) return *value->Bool();
  Fail(key, "true or false");
  return absent;
}

std::string GgufFields::String(std::string_view key, size_t max_bytes,
                               std::optional<std::string> absent) {
  const GgufValue* value = Need(key, absent.has_value());
  if (value == nullptr) return absent.value_or("");
  if (value->is_array || value->type != GgufType::kString) {
    Fail(key, "a string");
    return {};
  }
  const std::string_view text = value->strings[0];
  if (text.size() > max_bytes) {
    Refuse(key, fmt::format("has {} bytes, the limit is {}", text.size(), max_bytes));
  } else if (const size_t bad = FirstInvalidUtf8(text); bad != std::string_view::npos) {
    Refuse(key, fmt::format("is not valid UTF-8 at byte {}", bad));
  } else {
    return std::string(text);
  }
  return {};
}

std::vector<std::string_view> GgufFields::Strings(std::string_view key, size_t max_count,
                                                  size_t max_bytes) {
  const GgufValue* value = NeedArray(key, max_count);
  if (value == nullptr) return {};
  if (value->type != GgufType::kString) {
    Fail(key, "an array of strings");
    return {};
  }
  for (size_t i = 0; i < value->count; i++) {
    const std::string_view text = value->strings[i];
    if (text.size() > max_bytes) {
      Refuse(key,
             fmt::format("has {} bytes in element {}, the limit is {}", text.size(), i, max_bytes));
    } else if (FirstInvalidUtf8(text) != std::string_view::npos) {
      Refuse(key, fmt::format("is not valid UTF-8 in element {}", i));
    } else {
      continue;
    }
    return {};
  }
  return value->strings;
}

std::vector<int64_t> GgufFields::Ints(std::string_view key, size_t count, int64_t min,
                                      int64_t max) {
  std::vector<int64_t> numbers(count, min);
  const GgufValue* value = NeedArray(key, count);
  if (value == nullptr) return numbers;
  for (size_t i = 0; i < value->count; i++) {
    if (!IsInRange(value->Int(i), min, max)) {
      Refuse(key, fmt::format("has no integer from {} to {} in element {}", min, max, i));
      return numbers;
    }
    numbers[i] = *value->Int(i);
  }
  if (value->count != count) Fail(key, fmt::format("an array of {} elements", count));
  return numbers;
}

std::vector<bool> GgufFields::Bools(std::string_view key, size_t count) {
  const GgufValue* value = NeedArray(key, count);
  if (value == nullptr) return {};
  std::vector<bool> values;
  for (size_t i = 0; i < value->count; i++) {
    if (!value->Bool(i)) {
      Refuse(key, fmt::format("is neither true nor false in element {}", i));
      return {};
    }
    values.push_back(*value->Bool(i));
  }
  if (value->count != count) Fail(key, fmt::format("an array of {} elements", count));
  return values;
}

std::vector<double> GgufFields::Floats(std::string_view key, size_t count, double min, double max) {
  std::vector<double> numbers(count, min);
  const GgufValue* value = NeedArray(key, count);
  if (value == nullptr) return numbers;
  for (size_t i = 0; i < value->count; i++) {
    if (!IsInRange(value->Float(i), min, max)) {
      Refuse(key, fmt::format("has no number from {:g} to {:g} in element {}", min, max, i));
      return numbers;
    }
    numbers[i] = *value->Float(i);
  }
  if (value->count != count) Fail(key, fmt::format("an array of {} elements", count));
  return numbers;
}

}  // namespace penstock
