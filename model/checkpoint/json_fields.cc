#include "model/checkpoint/json_fields.h"

#include <algorithm>
#include <utility>

#include "base/printable_name.h"

namespace penstock {
namespace {

std::string Printable(const nlohmann::json& value) {
  constexpr size_t kMaxBytes = 60;
  if (value.is_string()) return PrintableName(value.get_ref<const std::string&>());
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump();
  return text.size() <= kMaxBytes ? text : text.substr(0, kMaxBytes) + "...";
}

bool InRange(const nlohmann::json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
  return value.get<int64_t>() >= min && value.get<int64_t>() <= max;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view where,
                                               size_t max_bytes) {
  if (text.size() > max_bytes) {
    return InvalidArgument("{} has {} bytes, the limit is {}", where, text.size(), max_bytes);
  }
  try {
    nlohmann::json value = nlohmann::json::parse(text.begin(), text.end());
    if (value.is_object()) return value;
    return InvalidArgument("{} is not a JSON object", where);
  } catch (const nlohmann::json::parse_error& error) {
    return InvalidArgument("{} is not JSON at byte {}", where, error.byte);
  } catch (const nlohmann::json::exception&) {
    return InvalidArgument("{} has a number that no JSON reader can hold", where);
  }
}

JsonFields::JsonFields(const nlohmann::json& object, std::string where)
    : object_(object), where_(std::move(where)) {}

const nlohmann::json* JsonFields::Find(const std::string& key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::Has(const std::string& key) const { return Find(key) != nullptr; }

const nlohmann::json* JsonFields::Need(const std::string& key, bool has_default) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr && !has_default && status_.ok()) {
    status_ = InvalidArgument("{}{} is missing", where_, key);
  }
  return value;
}

void JsonFields::Fail(const std::string& key, std::string_view allowed) {
  if (!status_.ok()) return;
  const nlohmann::json* value = Find(key);
  status_ = InvalidArgument("{}{} is {}, allowed is {}", where_, key,
                            value == nullptr ? "absent" : Printable(*value), allowed);
}

int64_t JsonFields::Int(const std::string& key, int64_t min, int64_t max,
                        std::optional<int64_t> absent) {
  const nlohmann::json* value = Need(key, absent.has_value());
  if (value == nullptr) return absent.value_or(min);
  if (InRange(*value, min, max)) return value->get<int64_t>();
  Fail(key, fmt::format("an integer from {} to {}", min, max));
  return min;
}

double JsonFields::Float(const std::string& key, double min, double max,
                         std::optional<double> absent) {
  const nlohmann::json* value = Need(key, absent.has_value());
  if (value == nullptr) return absent.value_or(min);
  if (value->is_number()) {
    const auto number = value->get<double>();
    if (number >= min && number <= max) return number;
  }
  Fail(key, fmt::format("a number from {:g} to {:g}", min, max));
  return min;
}

bool JsonFields::Bool(const std::string& key, bool absent) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) {
    Fail(key, "true or false");
    return absent;
  }
  return value->get<bool>();
}

std::string JsonFields::Choice(const std::string& key, const std::vector<std::string>& allowed,
                               const std::optional<std::string>& absent) {
  const nlohmann::json* value = Need(key, absent.has_value());
  if (value == nullptr) return absent.value_or(allowed.front());
  if (value->is_string() && std::ranges::count(allowed, value->get<std::string>()) > 0) {
    return value->get<std::string>();
  }
  Fail(key, fmt::format("one of {}", fmt::join(allowed, ", ")));
  return allowed.front();
}

std::vector<int64_t> JsonFields::IntOrList(const std::string& key, int64_t min, int64_t max,
                                           size_t max_size) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return {};
  std::vector<int64_t> numbers;
  const auto take = [&](const nlohmann::json& element) {
    if (!InRange(element, min, max)) return false;
    numbers.push_back(element.get<int64_t>());
    return true;
  };
  const bool good = value->is_array() ? value->size() <= max_size &&
                                            std::all_of(value->begin(), value->end(), take)
                                      : take(*value);
  if (good) return numbers;
  Fail(key,
       fmt::format("an integer from {} to {} or a list of at most {} of them", min, max, max_size));
  return {};
}

std::vector<std::string> JsonFields::Strings(const std::string& key, size_t max_size) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return {};
  const auto is_string = [](const nlohmann::json& element) { return element.is_string(); };
  if (!value->is_array() || value->size() > max_size ||
      !std::all_of(value->begin(), value->end(), is_string)) {
    Fail(key, fmt::format("a list of at most {} strings", max_size));
    return {};
  }
  return value->get<std::vector<std::string>>();
}

std::vector<double> JsonFields::Floats(const std::string& key, double min, double max,
                                       size_t max_size) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return {};
  const auto fits = [&](const nlohmann::json& element) {
    return element.is_number() && element.get<double>() >= min && element.get<double>() <= max;
  };
  if (!value->is_array() || value->size() > max_size ||
      !std::all_of(value->begin(), value->end(), fits)) {
    Fail(key, fmt::format("a list of at most {} numbers from {:g} to {:g}", max_size, min, max));
    return {};
  }
  return value->get<std::vector<double>>();
}

const nlohmann::json* JsonFields::Object(const std::string& key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || value->is_object()) return value;
  Fail(key, "an object");
  return nullptr;
}

}  // namespace penstock
