#include "base/config/config.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "base/config/config_field.h"
#include "base/config/config_file.h"
#include "base/config/config_program.h"

namespace penstock {
namespace {

namespace pb = google::protobuf;

// The command line, sorted by field.
struct Flags {
  std::map<std::string, std::vector<std::string>> values;
  std::optional<std::string> file;
  bool help = false;
  bool version = false;
};

std::string EnvironmentName(const std::string& field) {
  std::string name = "PENSTOCK_" + field;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

std::optional<std::string> Environment(const std::string& field) {
  // Read before any thread starts.
  const char* value = std::getenv(EnvironmentName(field).c_str());  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr) return std::nullopt;
  return value;
}

absl::Status UnknownFlag(const std::string& name, const pb::Descriptor& type) {
  std::vector<std::string> known = FieldNames(type);
  known.insert(known.end(), {"config", "help", "version"});
  std::string plain = name;
  std::ranges::replace(plain, '-', '_');
  if (const auto nearest = Nearest(plain, known)) {
    return InvalidArgument("--{} is unknown; did you mean --{}?", name, *nearest);
  }
  return InvalidArgument("--{} is unknown; --help lists what there is", name);
}

// Takes one flag, and the next argument where it is the flag's value; `at` moves behind them.
absl::Status TakeFlag(const std::vector<std::string>& arguments, const pb::Descriptor& type,
                      size_t& at, Flags& flags) {
  const std::string& argument = arguments[at++];
  if (argument == "--help" || argument == "-h") {
    flags.help = true;
    return absl::OkStatus();
  }
  if (argument == "--version") {
    flags.version = true;
    return absl::OkStatus();
  }
  if (!argument.starts_with("--") || argument.size() == 2) {
    return InvalidArgument("`{}` is not an option: options are --name=value", argument);
  }
  const size_t equals = argument.find('=');
  const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
  const pb::FieldDescriptor* field = FindField(type, name);
  if (field == nullptr && name != "config") return UnknownFlag(name, type);
  std::string value;
  if (equals != std::string::npos) {
    value = argument.substr(equals + 1);
  } else if (field != nullptr && field->cpp_type() == pb::FieldDescriptor::CPPTYPE_BOOL) {
    value = "true";
  } else if (at < arguments.size()) {
    value = arguments[at++];
  } else {
    return InvalidArgument("--{} has no value: write --{}=VALUE", name, name);
  }
  if (field == nullptr) {
    flags.file = value;
  } else {
    flags.values[field->name()].push_back(value);
  }
  return absl::OkStatus();
}

absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& arguments,
                                 const pb::Descriptor& type) {
  Flags flags;
  for (size_t at = 0; at < arguments.size();) {
    RETURN_IF_ERROR(TakeFlag(arguments, type, at, flags));
  }
  return flags;
}

absl::Status ApplyInitial(const ProgramInfo& program, pb::Message& config) {
  const pb::Descriptor& type = *config.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const std::string initial = TraitsOf(*type.field(i), program).default_value;
    if (initial.empty()) continue;
    RETURN_IF_ERROR(Annotate(SetField(*type.field(i), {initial}, config),
                             fmt::format("the initial {} of {}", initial, type.field(i)->name())));
  }
  return absl::OkStatus();
}

absl::Status ApplyFile(const std::string& path, pb::Message& config) {
  const pb::Descriptor& type = *config.GetDescriptor();
  ASSIGN_OR_RETURN(const auto entries, ReadConfigFile(path));
  for (const auto& [key, value] : entries) {
    const pb::FieldDescriptor* field = FindField(type, key);
    if (field == nullptr) {
      const auto nearest = Nearest(key, FieldNames(type));
      return FailedPrecondition("{}: {} is unknown{}", value.where, key,
                                nearest ? fmt::format("; did you mean {}?", *nearest) : "");
    }
    if (value.values.size() != 1 && !field->is_repeated()) {
      return FailedPrecondition("{}: {} is one value, not a list", value.where, key);
    }
    const absl::Status set = SetField(*field, value.values, config);
    if (!set.ok()) {
      return FailedPrecondition("{}: {}={} {}", value.where, key, fmt::join(value.values, ","),
                                Message(set));
    }
  }
  return absl::OkStatus();
}

absl::Status ApplyEnvironment(pb::Message& config) {
  const pb::Descriptor& type = *config.GetDescriptor();
  for (const std::string& name : FieldNames(type)) {
    const std::optional<std::string> value = Environment(name);
    if (!value) continue;
    const absl::Status set = SetField(*type.FindFieldByName(name), {*value}, config);
    if (!set.ok()) {
      return FailedPrecondition("{}={} in the environment {}", EnvironmentName(name), *value,
                                Message(set));
    }
  }
  return absl::OkStatus();
}

absl::Status ApplyFlags(const Flags& flags, pb::Message& config) {
  const pb::Descriptor& type = *config.GetDescriptor();
  for (const auto& [name, values] : flags.values) {
    const absl::Status set = SetField(*type.FindFieldByName(name), values, config);
    if (!set.ok()) {
      return InvalidArgument("--{}={} {}", name, fmt::join(values, ","), Message(set));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNeeded(const pb::Message& config) {
  const pb::Descriptor& type = *config.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor& field = *type.field(i);
    const FieldTraits traits = TraitsOf(field);
    if (!traits.required) continue;
    const pb::Reflection& reflection = *config.GetReflection();
    const bool given = field.is_repeated() ? reflection.FieldSize(config, &field) > 0
                                           : reflection.HasField(config, &field);
    if (!given) return InvalidArgument("--{} is needed: {}", field.name(), traits.help);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillConfig(const std::vector<std::string>& arguments, const ProgramInfo& program,
                        pb::Message& config) {
  const pb::Descriptor& type = *config.GetDescriptor();
  ASSIGN_OR_RETURN(const Flags flags, ParseFlags(arguments, type));
  if (flags.help) {
    return Cancelled("{}", HelpText(DescribeServer(program, type), program.name, HelpWidth()));
  }
  if (flags.version) return Cancelled("{} {}\n", program.name, PENSTOCK_VERSION);
  RETURN_IF_ERROR(ApplyInitial(program, config));
  const std::optional<std::string> file = flags.file ? flags.file : Environment("config");
  if (file) RETURN_IF_ERROR(ApplyFile(*file, config));
  RETURN_IF_ERROR(ApplyEnvironment(config));
  RETURN_IF_ERROR(ApplyFlags(flags, config));
  return CheckNeeded(config);
}

ExitCode ReportConfig(const absl::Status& status, const ProgramInfo& program) {
  if (status.ok()) return ExitCode::kOk;
  if (absl::IsCancelled(status)) {
    fmt::print(stdout, "{}", Message(status));
    return ExitCode::kOk;
  }
  fmt::print(stderr, "{}: {}\n", program.name, Message(status));
  if (absl::IsInvalidArgument(status)) return ExitCode::kUsage;
  return absl::IsNotFound(status) ? ExitCode::kNoInput : ExitCode::kBadConfig;
}

std::string DescribeConfig(const pb::Message& config) {
  std::vector<const pb::FieldDescriptor*> fields;
  config.GetReflection()->ListFields(config, &fields);
  std::vector<std::string> parts;
  for (const pb::FieldDescriptor* field : fields) {
    std::vector<std::string> values;
    const int count = field->is_repeated() ? config.GetReflection()->FieldSize(config, field) : 1;
    for (int i = 0; i < count; ++i) {
      std::string value;
      pb::TextFormat::PrintFieldValueToString(config, field, field->is_repeated() ? i : -1, &value);
      std::erase(value, '"');
      values.push_back(std::move(value));
    }
    parts.push_back(fmt::format("{}={}", field->name(), fmt::join(values, ",")));
  }
  return fmt::format("{}", fmt::join(parts, " "));
}

}  // namespace penstock
