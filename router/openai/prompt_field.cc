#include "router/openai/prompt_field.h"

#include "router/request/error_detail.h"

namespace penstock {
namespace {

absl::Status ReadIds(const std::string& path, const Json& ids, v1::GenerateRequest& generate) {
  if (ids.empty()) return BadField(path, "is empty; a prompt is needed");
  if (ids.size() > kMaxPromptTokens) {
    return BadField(path, "has {} token ids; the limit is {}", ids.size(), kMaxPromptTokens);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t id,
                     IntegerOf(fmt::format("{}[{}]", path, i), ids[i], 0, UINT32_MAX));
    generate.mutable_tokens()->add_ids(static_cast<uint32_t>(id));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::GenerateRequest> ReadPrompt(const std::string& path, const Json& prompt,
                                               v1::GenerateRequest generate) {
  if (prompt.is_array()) {
    RETURN_IF_ERROR(ReadIds(path, prompt, generate));
    return generate;
  }
  if (!prompt.is_string()) {
    return BadField(path, "must be a string or a list of token ids, not {}", KindOf(prompt));
  }
  generate.set_text(prompt.get<std::string>());
  return generate;
}

}  // namespace

absl::StatusOr<std::vector<v1::GenerateRequest>> ReadPromptField(const Json& body,
                                                                 const PromptFieldArgs& args) {
  const std::string name = args.name;
  FieldReader reader(body, "");
  const Json* field = reader.Any(args.name);
  if (field == nullptr) return BadField(name, "is needed: text or token ids");
  std::vector<v1::GenerateRequest> prompts;
  const auto add = [&](const std::string& path, const Json& prompt) -> absl::Status {
    ASSIGN_OR_RETURN(v1::GenerateRequest read, ReadPrompt(path, prompt, args.shared));
    prompts.push_back(std::move(read));
    return absl::OkStatus();
  };
  const bool several = field->is_array() && !field->empty() && !field->front().is_number();
  if (!several) {
    RETURN_IF_ERROR(add(name, *field));
    return prompts;
  }
  if (field->size() > args.max_prompts) {
    return BadField(name, "has {} prompts; the limit is {}", field->size(), args.max_prompts);
  }
  for (size_t i = 0; i < field->size(); ++i) {
    RETURN_IF_ERROR(add(fmt::format("{}[{}]", name, i), (*field)[i]));
  }
  return prompts;
}

}  // namespace penstock
