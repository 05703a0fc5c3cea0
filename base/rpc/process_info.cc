#include "base/rpc/process_info.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <algorithm>

#include "base/config/config_field.h"

namespace penstock {
namespace {

namespace pb = google::protobuf;

// Formats a value as it would be typed: lists with commas, strings without quotes.
std::string ValueOf(const pb::Message& config, const pb::FieldDescriptor& field) {
  const pb::Reflection& reflection = *config.GetReflection();
  std::string text;
  if (field.cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING) {
    if (!field.is_repeated()) return reflection.GetString(config, &field);
    for (int i = 0; i < reflection.FieldSize(config, &field); ++i) {
      if (i > 0) text += ',';
      text += reflection.GetRepeatedString(config, &field, i);
    }
    return text;
  }
  pb::TextFormat::PrintFieldValueToString(config, &field, -1, &text);
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
