#include "router/request/served_model.h"

#include <algorithm>
#include <filesystem>

#include "model/checkpoint/model_config.h"
#include "model/template/chat_template.h"

namespace penstock {
namespace {

std::string DirectoryName(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
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
  return model;
}

absl::StatusOr<ServedModel> LoadServedModel(const std::string& directory, const std::string& name) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
  ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::Load(directory));
  auto chat_template = LoadChatTemplate(directory);
  if (!chat_template.ok() && !absl::IsNotFound(chat_template.status())) {
    return chat_template.status();
  }
  ServedModel model =
      MakeServedModel(name.empty() ? DirectoryName(directory) : name, std::move(tokenizer),
                      chat_template.ok() ? *std::move(chat_template) : nullptr,
                      static_cast<uint32_t>(config.max_position));
  model.vocab = static_cast<uint32_t>(config.vocab);
  if (!config.eos_token_ids.empty()) model.eos_token_ids = config.eos_token_ids;
  return model;
}

}  // namespace penstock
