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
constexpr const char* kLastToken = "pooling_mode_lasttoken";
constexpr const char* kMean = "pooling_mode_mean_tokens";

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

// Newer files name the mode, older ones have a field for each.
Pooling ReadMode(const nlohmann::json& file, JsonFields& fields) {
  if (fields.Has("pooling_mode")) {
    const std::string mode = fields.Choice("pooling_mode", {"lasttoken", "mean"});
    return mode == "mean" ? Pooling::kMean : Pooling::kLastToken;
  }
  const bool last = fields.Bool(kLastToken, false), mean = fields.Bool(kMean, false);
  for (const auto& [key, value] : file.items()) {
    if (!key.starts_with("pooling_mode_") || key == kLastToken || key == kMean) continue;
    if (fields.Bool(key, false)) {
      fields.Fail(key, "false: the last token or the mean of all is pooled");
    }
  }
  if (last && mean) fields.Fail(kMean, "false beside pooling_mode_lasttoken");
  if (!last && !mean) fields.Fail(kLastToken, "true, or pooling_mode_mean_tokens");
  return mean ? Pooling::kMean : Pooling::kLastToken;
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
  config->pooling = ReadMode(file, fields);
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
