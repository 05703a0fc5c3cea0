#include "base/config/config.h"

#include <google/protobuf/text_format.h>
#include <unistd.h>

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

// The names that users may write for the fields of a configuration. Collects one warning for each
// old name.
class KnownNames {
 public:
  KnownNames(const pb::Descriptor& type, const ProgramInfo& program)
      : type_(type), renamed_(program.renamed) {}

  // The field that `name` sets, by its name or its old name; nullptr when there is none.
  const pb::FieldDescriptor* Find(const std::string& name) const {
    if (const pb::FieldDescriptor* field = FindField(type_, name)) return field;
    const RenamedField* renamed = FindRenamed(renamed_, type_, name);
    return renamed == nullptr ? nullptr : FindField(type_, std::string(renamed->new_name));
  }
  // The old names of a field.
  std::vector<std::string> OldNames(const pb::FieldDescriptor& field) const {
    std::vector<std::string> names;
    for (const RenamedField& renamed : renamed_) {
      if (renamed.message == type_.full_name() && renamed.new_name == field.name()) {
        names.emplace_back(renamed.old_name);
      }
    }
    return names;
  }
  bool IsOld(const std::string& name) const { return FindField(type_, name) == nullptr; }
  // `old_name` and `new_name` as the user writes them, e.g. with "--".
  void WarnOfOld(const std::string& old_name, const std::string& new_name) {
    std::string warning = fmt::format("{} was renamed to {}; the next release removes the old name",
                                      old_name, new_name);
    if (std::ranges::count(warnings_, warning) == 0) warnings_.push_back(std::move(warning));
  }
  void WarnOfUnknown(const std::string& variable, const std::string& nearest) {
    warnings_.push_back(
        fmt::format("{} in the environment sets nothing; is it {}?", variable, nearest));
  }
  const pb::Descriptor& type() const { return type_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  const pb::Descriptor& type_;
  const std::span<const RenamedField> renamed_;
  std::vector<std::string> warnings_;
};

std::string SetByBothNames(const std::string& old_name, const std::string& new_name) {
  return fmt::format("{} is the old name of {}, and both are set: remove {}", old_name, new_name,
                     old_name);
}

// The command line, sorted by field.
struct Flags {
  std::map<std::string, std::vector<std::string>> values;
  std::map<std::string, std::string> old_names;  // the old name that set a field, by field
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
  // getenv is safe here: no other thread has started.
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
  return InvalidArgument("--{} is unknown; --help lists all options", name);
}

// Parses one flag, and the next argument where it is the flag's value; `at` moves behind them.
absl::Status ParseFlag(const std::vector<std::string>& arguments, const KnownNames& names,
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
  const pb::FieldDescriptor* field = names.Find(name);
  if (field == nullptr && name != "config") return UnknownFlag(name, names.type());
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
    return absl::OkStatus();
  }
  std::vector<std::string>& values = flags.values[field->name()];
  if (!values.empty() && flags.old_names.contains(field->name()) != names.IsOld(name)) {
    const std::string old_name = names.IsOld(name) ? name : flags.old_names[field->name()];
    return InvalidArgument("{}", SetByBothNames("--" + old_name, "--" + field->name()));
  }
  if (names.IsOld(name)) flags.old_names[field->name()] = name;
  values.push_back(value);
  return absl::OkStatus();
}

absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& arguments, KnownNames& names) {
  Flags flags;
  for (size_t at = 0; at < arguments.size();) {
    RETURN_IF_ERROR(ParseFlag(arguments, names, at, flags));
  }
  for (const auto& [field, old_name] : flags.old_names) {
    names.WarnOfOld("--" + old_name, "--" + field);
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

absl::Status ApplyFile(const std::string& path, KnownNames& names, pb::Message& config) {
  ASSIGN_OR_RETURN(const auto entries, ReadConfigFile(path));
  std::map<std::string, std::string> key_of;  // by field
  for (const auto& [key, value] : entries) {
    const pb::FieldDescriptor* field = names.Find(key);
    if (field == nullptr) {
      const auto nearest = Nearest(key, FieldNames(names.type()));
      return FailedPrecondition("{}: {} is unknown{}", value.where, key,
                                nearest ? fmt::format("; did you mean {}?", *nearest) : "");
    }
    const auto [first, is_first] = key_of.try_emplace(field->name(), key);
    if (!is_first && names.IsOld(first->second) != names.IsOld(key)) {
      const std::string& old_name = names.IsOld(key) ? key : first->second;
      return FailedPrecondition("{}: {}", value.where, SetByBothNames(old_name, field->name()));
    }
    if (names.IsOld(key)) names.WarnOfOld(fmt::format("{}: {}", path, key), field->name());
    if (value.values.size() != 1 && !field->is_repeated()) {
      return FailedPrecondition("{}: {} has a list; allowed is one value", value.where, key);
    }
    const absl::Status set = SetField(*field, value.values, config);
    if (!set.ok()) {
      return FailedPrecondition("{}: {}={} {}", value.where, key, fmt::join(value.values, ","),
                                Message(set));
    }
  }
  return absl::OkStatus();
}

// Sets the field from the environment variable of `name`, where that is set.
absl::Status ApplyVariable(const std::string& name, const pb::FieldDescriptor& field,
                           pb::Message& config) {
  const std::optional<std::string> value = Environment(name);
  if (!value) return absl::OkStatus();
  absl::Status set = SetField(field, {*value}, config);
  if (set.ok()) return set;
  return FailedPrecondition("{}={} in the environment {}", EnvironmentName(name), *value,
                            Message(set));
}

// Warns of variables that are nearly named as options. Others that begin with PENSTOCK_ may belong
// to the other programs, or be Kubernetes' links to services.
void WarnOfMisspelt(KnownNames& names) {
  constexpr std::string_view kPrefix = "PENSTOCK_";
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!text.starts_with(kPrefix)) continue;
    std::string name(text.substr(kPrefix.size(), text.find('=') - kPrefix.size()));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (name == "config" || names.Find(name) != nullptr) continue;
    const std::optional<std::string> nearest = Nearest(name, FieldNames(names.type()));
    if (nearest) names.WarnOfUnknown(EnvironmentName(name), EnvironmentName(*nearest));
  }
}

absl::Status ApplyEnvironment(KnownNames& names, pb::Message& config) {
  const pb::Descriptor& type = names.type();
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor& field = *type.field(i);
    RETURN_IF_ERROR(ApplyVariable(field.name(), field, config));
    for (const std::string& old_name : names.OldNames(field)) {
      if (!Environment(old_name)) continue;
      const std::string variable = EnvironmentName(old_name);
      if (Environment(field.name())) {
        return FailedPrecondition("{}", SetByBothNames(variable, EnvironmentName(field.name())));
      }
      names.WarnOfOld(variable, EnvironmentName(field.name()));
      RETURN_IF_ERROR(ApplyVariable(old_name, field, config));
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
    if (!given) return InvalidArgument("--{} is required: {}", field.name(), traits.help);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillConfig(const std::vector<std::string>& arguments, const ProgramInfo& program,
                        pb::Message& config, std::vector<std::string>* warnings) {
  const pb::Descriptor& type = *config.GetDescriptor();
  KnownNames names(type, program);
  ASSIGN_OR_RETURN(const Flags flags, ParseFlags(arguments, names));
  if (flags.help) {
    return Cancelled("{}", HelpText(DescribeServer(program, type), program.name, HelpWidth()));
  }
  if (flags.version) return Cancelled("{} {}\n", program.name, PENSTOCK_VERSION);
  RETURN_IF_ERROR(ApplyInitial(program, config));
  const std::optional<std::string> file = flags.file ? flags.file : Environment("config");
  if (file) RETURN_IF_ERROR(ApplyFile(*file, names, config));
  RETURN_IF_ERROR(ApplyEnvironment(names, config));
  WarnOfMisspelt(names);
  RETURN_IF_ERROR(ApplyFlags(flags, config));
  if (warnings != nullptr) *warnings = names.warnings();
  return CheckNeeded(config);
}

void PrintConfigWarnings(const std::vector<std::string>& warnings, const ProgramInfo& program) {
  for (const std::string& warning : warnings) {
    fmt::print(stderr, "{}: warning: {}\n", program.name, warning);
  }
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
