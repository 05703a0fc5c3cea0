#include "router/request/served_model.h"

#include <algorithm>
#include <set>

#include "model/checkpoint/model_config.h"
#include "model/gguf/model_text.h"
#include "model/template/chat_template.h"

namespace penstock {
namespace {

absl::Status CheckAliases(const std::string& name, const std::vector<std::string>& aliases) {
  std::set<std::string> names = {name};
  for (const std::string& alias : aliases) {
    if (alias.empty()) return InvalidArgument("model_alias is empty");
    if (!names.insert(alias).second) {
      return InvalidArgument("model_alias: the name '{}' is given twice", alias);
    }
  }
  return absl::OkStatus();
}

}  // namespace

ServedModel MakeServedModel(std::string name, std::unique_ptr<const Tokenizer> tokenizer,
                            std::shared_ptr<const ChatTemplate> chat_template,
                            uint32_t max_model_len) {
  ServedModel model{.name = std::move(name),
                    .tokenizer = std::move(tokenizer),
                    .chat_template = std::move(chat_template),
                    .max_model_len = max_model_len};
  model.vocab = model.tokenizer->vocab_size();
  if (const auto eos = model.tokenizer->eos_id()) model.eos_token_ids.push_back(*eos);
  for (uint32_t id = 0; id < model.vocab; ++id) {
    model.longest_token_bytes =
        std::max(model.longest_token_bytes, model.tokenizer->TokenBytes(id).size());
  }
  auto output = FindOutputSupport("auto", model.chat_template.get(), model.tokenizer->bos_token(),
                                  model.tokenizer->eos_token());
  if (output.ok()) model.output = *std::move(output);
  return model;
}

absl::StatusOr<ServedModel> LoadServedModel(const ServedModelOptions& options) {
  const std::string& directory = options.directory;
  const std::string name = options.name.empty() ? DefaultModelName(directory) : options.name;
  RETURN_IF_ERROR(CheckAliases(name, options.aliases));
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
  const auto longest = static_cast<uint32_t>(config.max_position);
  if (options.max_model_len > longest) {
    return InvalidArgument("max_model_len is {}; {} was trained for {} tokens",
                           options.max_model_len, directory, longest);
  }
  ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load(directory));
  auto chat_template = LoadChatTemplate(directory);
  if (!chat_template.ok() && !absl::IsNotFound(chat_template.status())) {
    return chat_template.status();
  }
  ServedModel model = MakeServedModel(name, std::move(tokenizer),
                                      chat_template.ok() ? *std::move(chat_template) : nullptr,
                                      options.max_model_len == 0 ? longest : options.max_model_len);
  model.aliases = options.aliases;
  model.vocab = static_cast<uint32_t>(config.vocab);
  if (!config.eos_token_ids.empty()) model.eos_token_ids = config.eos_token_ids;
  auto embedding = LoadEmbeddingConfig(directory, config.hidden);
  if (!absl::IsNotFound(embedding.status())) model.embedding = std::move(embedding);
  ASSIGN_OR_RETURN(model.output,
                   FindOutputSupport(options.tool_format, model.chat_template.get(),
                                     model.tokenizer->bos_token(), model.tokenizer->eos_token()));
  return model;
}

}  // namespace penstock
