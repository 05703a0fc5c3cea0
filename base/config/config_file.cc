#include "base/config/config_file.h"

#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace penstock {
namespace {

constexpr size_t kFileMax = size_t{1} << 20;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("--config={}: cannot open it: {}", path, std::strerror(errno));
  std::string text(kFileMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kFileMax) {
    return FailedPrecondition("--config={} is larger than the limit, 1 MiB", path);
  }
  return text;
}

std::string Where(const std::string& path, const YAML::Mark& mark) {
  return fmt::format("{}:{}:{}", path, mark.line + 1, mark.column + 1);
}

absl::StatusOr<std::vector<std::string>> Texts(const YAML::Node& node, const std::string& where) {
  if (node.IsScalar()) return std::vector<std::string>{node.Scalar()};
  if (!node.IsSequence()) return FailedPrecondition("{}: expected a value or a list", where);
  std::vector<std::string> texts;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) return FailedPrecondition("{}: expected a list of plain values", where);
    texts.push_back(item.Scalar());
  }
  return texts;
}

absl::StatusOr<std::map<std::string, FileValue>> Entries(const YAML::Node& root,
                                                         const std::string& path) {
  std::map<std::string, FileValue> entries;
  if (root.IsNull()) return entries;  // An empty file.
  if (!root.IsMap()) {
    return FailedPrecondition("{}: expected `name: value` lines", Where(path, root.Mark()));
  }
  for (const auto& entry : root) {
    const std::string where = Where(path, entry.first.Mark());
    if (!entry.first.IsScalar()) return FailedPrecondition("{}: expected a name", where);
    ASSIGN_OR_RETURN(std::vector<std::string> texts, Texts(entry.second, where));
    const std::string& key = entry.first.Scalar();
    if (!entries.try_emplace(key, FileValue{where, std::move(texts)}).second) {
      return FailedPrecondition("{}: {} is set twice", where, key);
    }
  }
  return entries;
}

}  // namespace

absl::StatusOr<std::map<std::string, FileValue>> ReadConfigFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  try {
    return Entries(YAML::Load(text), path);
  } catch (const YAML::Exception& error) {
    return FailedPrecondition("{}: {}", Where(path, error.mark), error.msg);
  }
}

}  // namespace penstock
