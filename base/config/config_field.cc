#include "base/config/config_field.h"

#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "base/check.h"

namespace penstock {
namespace {

namespace pb = google::protobuf;

// The options are extensions that the configuration's own file declares. Looking them up there by
// name keeps this folder free of generated headers.
const pb::FieldDescriptor* Option(const pb::FieldDescriptor& field, const char* name) {
  const pb::FieldDescriptor* option = field.file()->FindExtensionByName(name);
  if (option == nullptr) return nullptr;
  const pb::FieldOptions& options = field.options();
  return options.GetReflection()->HasField(options, option) ? option : nullptr;
}

std::string TextOption(const pb::FieldDescriptor& field, const char* name) {
  const pb::FieldDescriptor* option = Option(field, name);
  if (option == nullptr) return "";
  return field.options().GetReflection()->GetString(field.options(), option);
}

std::optional<int64_t> NumberOption(const pb::FieldDescriptor& field, const char* name) {
  const pb::FieldDescriptor* option = Option(field, name);
  if (option == nullptr) return std::nullopt;
  return field.options().GetReflection()->GetInt64(field.options(), option);
}

bool BoolOption(const pb::FieldDescriptor& field, const char* name) {
  const pb::FieldDescriptor* option = Option(field, name);
  return option != nullptr && field.options().GetReflection()->GetBool(field.options(), option);
}

std::string Limits(const FieldTraits& traits, double min, double max) {
  if (traits.min) min = static_cast<double>(*traits.min);
  if (traits.max) max = static_cast<double>(*traits.max);
  return fmt::format("{} to {}", min, max);
}

// Parses a number of type T within the limits of the type and of the field.
template <class T>
absl::StatusOr<T> ParseNumber(const FieldTraits& traits, const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const bool is_number = rest == end && !text.empty() && error != std::errc::invalid_argument;
  if constexpr (std::is_floating_point_v<T>) {
    if (!is_number || !std::isfinite(value)) return InvalidArgument("is not a number");
  } else if (!is_number) {
    return InvalidArgument("is not a whole number; allowed are {}",
                           Limits(traits, static_cast<double>(std::numeric_limits<T>::min()),
                                  static_cast<double>(std::numeric_limits<T>::max())));
  }
  const bool out_of_type = error == std::errc::result_out_of_range;
  const bool below = traits.min && static_cast<double>(value) < static_cast<double>(*traits.min);
  const bool above = traits.max && static_cast<double>(value) > static_cast<double>(*traits.max);
  if (out_of_type || below || above) {
    return InvalidArgument("is out of range; allowed are {}",
                           Limits(traits, static_cast<double>(std::numeric_limits<T>::lowest()),
                                  static_cast<double>(std::numeric_limits<T>::max())));
  }
  return value;
}

absl::StatusOr<bool> ParseBool(const std::string& text) {
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  return InvalidArgument("is not a boolean; allowed are true and false");
}

absl::Status CheckText(const FieldTraits& traits, const std::string& text) {
  if (!traits.choices.empty() && std::ranges::count(traits.choices, text) == 0) {
    return InvalidArgument("is unknown; allowed are {}", fmt::join(traits.choices, ", "));
  }
  if (traits.byte_size) return ParseBytes(text).status();
  return absl::OkStatus();
}

// Sets a scalar field, or appends to a list.
absl::Status AddValue(const pb::FieldDescriptor& field, const FieldTraits& traits,
                      const std::string& text, pb::Message& config) {
  RETURN_IF_ERROR(CheckText(traits, text));
  const pb::Reflection& reflection = *config.GetReflection();
  const bool list = field.is_repeated();
#define PENSTOCK_CONFIG_TYPE(CPPTYPE, Name, parse)  \
  case pb::FieldDescriptor::CPPTYPE: {              \
    ASSIGN_OR_RETURN(auto value, parse);            \
    if (list) {                                     \
      reflection.Add##Name(&config, &field, value); \
    } else {                                        \
      reflection.Set##Name(&config, &field, value); \
    }                                               \
    return absl::OkStatus();                        \
  }
  switch (field.cpp_type()) {
    PENSTOCK_CONFIG_TYPE(CPPTYPE_STRING, String, absl::StatusOr<std::string>(text))
    PENSTOCK_CONFIG_TYPE(CPPTYPE_BOOL, Bool, ParseBool(text))
    PENSTOCK_CONFIG_TYPE(CPPTYPE_INT32, Int32, ParseNumber<int32_t>(traits, text))
    PENSTOCK_CONFIG_TYPE(CPPTYPE_UINT32, UInt32, ParseNumber<uint32_t>(traits, text))
    PENSTOCK_CONFIG_TYPE(CPPTYPE_INT64, Int64, ParseNumber<int64_t>(traits, text))
    PENSTOCK_CONFIG_TYPE(CPPTYPE_UINT64, UInt64, ParseNumber<uint64_t>(traits, text))
    PENSTOCK_CONFIG_TYPE(CPPTYPE_FLOAT, Float, ParseNumber<float>(traits, text))
    PENSTOCK_CONFIG_TYPE(CPPTYPE_DOUBLE, Double, ParseNumber<double>(traits, text))
    default:
      break;
  }
#undef PENSTOCK_CONFIG_TYPE
  PENSTOCK_CHECK(false, "a configuration holds scalars, strings and lists of them");
  return absl::OkStatus();
}

// Levenshtein distance by dynamic programming over one row.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

FieldTraits TraitsOf(const pb::FieldDescriptor& field) {
  return {.help = TextOption(field, "help"),
          .default_value = TextOption(field, "default"),
          .min = NumberOption(field, "min"),
          .max = NumberOption(field, "max"),
          .choices = SplitList(TextOption(field, "choices")),
          .byte_size = BoolOption(field, "byte_size"),
          .required = BoolOption(field, "required"),
          .hidden = BoolOption(field, "hidden")};
}

FieldTraits TraitsOf(const pb::FieldDescriptor& field, const ProgramInfo& program) {
  FieldTraits traits = TraitsOf(field);
  const auto own = program.defaults.find(field.name());
  if (own != program.defaults.end()) traits.default_value = own->second;
  return traits;
}

absl::Status SetField(const pb::FieldDescriptor& field, const std::vector<std::string>& values,
                      pb::Message& config) {
  const FieldTraits traits = TraitsOf(field);
  config.GetReflection()->ClearField(&config, &field);
  for (const std::string& value : values) {
    if (!field.is_repeated()) {
      RETURN_IF_ERROR(AddValue(field, traits, value, config));
      continue;
    }
    for (const std::string& item : SplitList(value)) {
      RETURN_IF_ERROR(AddValue(field, traits, item, config));
    }
  }
  return absl::OkStatus();
}

const pb::FieldDescriptor* FindField(const pb::Descriptor& type, std::string name) {
  std::ranges::replace(name, '-', '_');
  return type.FindFieldByName(name);
}

std::optional<std::string> Nearest(const std::string& name,
                                   const std::vector<std::string>& candidates) {
  std::optional<std::string> nearest;
  size_t min = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < min) {
      min = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::vector<std::string> FieldNames(const pb::Descriptor& type) {
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(type.field_count()));
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return names;
}

std::vector<std::string> SplitList(const std::string& text) {
  std::vector<std::string> items;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t first = text.find_first_not_of(' ', begin);
    if (first < end) {
      const size_t last = text.find_last_not_of(' ', end - 1);
      items.push_back(text.substr(first, last - first + 1));
    }
    begin = end + 1;
  }
  return items;
}

}  // namespace penstock
