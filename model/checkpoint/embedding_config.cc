#include "model/checkpoint/embedding_config.h"

#include <string_view>
#include <vector>

#include "model/checkpoint/json_fields.h"
#include "model/gguf/model_text.h"

namespace penstock {
namespace {

constexpr size_t kMaxModuleBytes = size_t{64} << 10;
constexpr size_t kMaxModules = 8;
constexpr std::string_view kModulesFile = "modules.json";
constexpr std::string_view kLastToken = "lasttoken";

// A step from tokens to the embedding, e.g. {"Pooling", "1_Pooling"}.
struct Module {
  std::string kind;  // the last part of its class's name
  std::string path;
};

absl::StatusOr<std::vector<Module>> ReadModules(const std::string& model) {
  ASSIGN_OR_RETURN(const std::string text, ReadModelText(model, kModulesFile));
  // The file is a list.
  ASSIGN_OR_RETURN(const nlohmann::json file,
                   ParseJsonObject(R"({"modules":)" + text + "}", kModulesFile, kMaxModuleBytes));
  const nlohmann::json& list = file["modules"];
  if (!list.is_array() || list.empty() || list.size() > kMaxModules) {
    return InvalidArgument("{}: must be a list of 1 to {} modules", kModulesFile, kMaxModules);
  }
  std::vector<Module> modules;
  for (const nlohmann::json& item : list) {
    const auto text_of = [&](const char* key) {
      return item.is_object() && item.contains(key) && item[key].is_string()
                 ? item[key].get<std::string>()
                 : "";
    };
    const std::string type = text_of("type");
    modules.push_back({.kind = type.substr(type.rfind('.') + 1), .path = text_of("path")});
  }
  return modules;
}

// The path comes from the checkpoint, and must stay in it.
absl::Status CheckPath(const std::string& path) {
  if (!path.empty() && path.front() != '/' && path.find("..") == path.npos) return absl::OkStatus();
  return InvalidArgument("{}: path is '{}'; it must be a folder of the checkpoint", kModulesFile,
                         path);
}

absl::Status ReadPooling(const std::string& model, const std::string& path,
                         EmbeddingConfig* config) {
  RETURN_IF_ERROR(CheckPath(path));
  const std::string name = path + "/config.json";
  const absl::StatusOr<std::string> text = ReadModelText(model, name);
  if (absl::IsNotFound(text.status())) {
    return InvalidArgument("{}: names {}, which is missing", kModulesFile, name);
  }
  RETURN_IF_ERROR(text.status());
  ASSIGN_OR_RETURN(const nlohmann::json file, ParseJsonObject(*text, name, kMaxModuleBytes));
  JsonFields fields(file, name + ": ");
  const char* width =
      fields.Has("embedding_dimension") ? "embedding_dimension" : "word_embedding_dimension";
  if (fields.Int(width, 1, INT32_MAX) != config->dimensions && fields.status().ok()) {
    fields.Fail(width, fmt::format("the model's hidden_size, which is {}", config->dimensions));
  }
  // Newer files name the mode, older ones have a field for each.
  if (fields.Has("pooling_mode")) {
    fields.Choice("pooling_mode", {std::string(kLastToken)});
    return fields.status();
  }
  for (const auto& [key, value] : file.items()) {
    if (!key.starts_with("pooling_mode_")) continue;
    const bool last = key == "pooling_mode_lasttoken";
    if (fields.Bool(key, false) != last) {
      fields.Fail(key, last ? "true: only the last token's hidden state is pooled"
                            : "false: only the last token's hidden state is pooled");
    }
  }
  if (!fields.Has("pooling_mode_lasttoken")) {
    fields.Fail("pooling_mode_lasttoken", "true: only the last token's hidden state is pooled");
  }
  return fields.status();
}

}  // namespace

absl::StatusOr<EmbeddingConfig> LoadEmbeddingConfig(const std::string& model, int32_t hidden) {
  ASSIGN_OR_RETURN(const std::vector<Module> modules, ReadModules(model));
  EmbeddingConfig config{.dimensions = hidden};
  constexpr std::string_view kKinds[] = {"Transformer", "Pooling", "Normalize"};
  for (size_t i = 0; i < modules.size(); ++i) {
    if (i < std::size(kKinds) && modules[i].kind == kKinds[i]) continue;
    return InvalidArgument("{}: module {} is '{}', allowed is {}", kModulesFile, i, modules[i].kind,
                           i < std::size(kKinds) ? kKinds[i] : "no further one");
  }
  if (modules.size() < 2) return InvalidArgument("{}: has no Pooling", kModulesFile);
  RETURN_IF_ERROR(ReadPooling(model, modules[1].path, &config));
  config.normalise = modules.size() == 3;
  return config;
}

}  // namespace penstock
