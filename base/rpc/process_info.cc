#include "base/rpc/process_info.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <algorithm>

#include "base/config/config_field.h"

namespace penstock {
namespace {

namespace pb = google::protobuf;

// Formats a scalar, or the entry `index` of a list, as it would be typed: without quotes.
std::string ScalarText(const pb::Message& config, const pb::FieldDescriptor& field, int index) {
  const pb::Reflection& reflection = *config.GetReflection();
  if (field.cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING) {
    return index < 0 ? reflection.GetString(config, &field)
                     : reflection.GetRepeatedString(config, &field, index);
  }
  std::string text;
  pb::TextFormat::PrintFieldValueToString(config, &field, index, &text);
  return text;
}

// The same for a whole field: lists with commas.
std::string ValueOf(const pb::Message& config, const pb::FieldDescriptor& field) {
  if (!field.is_repeated()) return ScalarText(config, field, -1);
  std::string text;
  for (int i = 0; i < config.GetReflection()->FieldSize(config, &field); ++i) {
    if (i > 0) text += ',';
    text += ScalarText(config, field, i);
  }
  return text;
}

}  // namespace

ProcessInfo ProcessInfoOf(const std::string& program, const pb::Message& config) {
  ProcessInfo info{.program = program, .settings = {}};
  const pb::Descriptor& type = *config.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor& field = *type.field(i);
    const bool unset = !field.is_repeated() && !config.GetReflection()->HasField(config, &field);
    if (unset && TraitsOf(field).hidden) continue;
    info.settings.emplace_back(field.name(), ValueOf(config, field));
  }
  return info;
}

std::string ProcessVersion() { return PENSTOCK_VERSION; }

std::string ProcessBuild() {
#ifdef NDEBUG
  constexpr const char* kKind = "optimised";
#else
  constexpr const char* kKind = "with assertions";
#endif
#ifdef __clang__
  return fmt::format("clang {}.{}.{}, {}", __clang_major__, __clang_minor__, __clang_patchlevel__,
                     kKind);
#else
  return fmt::format("g++ {}.{}.{}, {}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__, kKind);
#endif
}

absl::StatusOr<std::string> ChangeLogLevel(const std::string& level) {
  const LogLevel min = ParseLogLevel(level);
  if (LogLevelName(min) != level) {
    return InvalidArgument("level is `{}`; allowed are debug, info, warning and error", level);
  }
  const LogLevel before = SetLogLevel(min);
  LogInfo("log_level_set", "the log level is {}, it was {}", level, LogLevelName(before));
  return std::string(LogLevelName(before));
}

}  // namespace penstock
