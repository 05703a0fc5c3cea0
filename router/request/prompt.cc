#include "router/request/prompt.h"

#include "base/clock.h"
#include "model/template/chat_template.h"
#include "router/request/chat_json.h"
#include "router/request/error_detail.h"
#include "router/request/tools.h"

namespace penstock {
namespace {

constexpr int kMaxMessages = 4096;
constexpr size_t kMaxRoleBytes = 64;
// Upper bound of the factor by which normalization shortens text (composed characters, spaces).
constexpr size_t kNormalizationFactor = 4;

// Templates that write any role as it is would show the model a marker that it has never seen.
absl::Status CheckRole(const std::string& role, int index, const ServedModel& model) {
  const std::string field = fmt::format("chat.messages[{}].role", index);
  if (role.empty() || role.size() > kMaxRoleBytes) {
    return BadField(field, "has {} bytes; it must have 1 to {}", role.size(), kMaxRoleBytes);
  }
  if (role == "system" || role == "user" || role == "assistant") return absl::OkStatus();
  if (model.chat_template->Quotes(role)) return absl::OkStatus();
  return BadField(field, "is `{}`, which the chat template of {} does not name", ShownText(role),
                  model.name);
}

// Refuses text that cannot fit in the context before it is tokenized, which costs CPU time.
absl::Status CheckTextSize(std::string_view field, size_t bytes, const ServedModel& model,
                           uint32_t max_tokens) {
  const size_t limit = kNormalizationFactor * model.longest_token_bytes * max_tokens;
  if (bytes <= limit) return absl::OkStatus();
  return WithDetail(
      BadField(field, "has {} bytes; what fits in the {} tokens of the context has at most {}",
               bytes, max_tokens, limit),
      {.reason = kReasonContextLength});
}

absl::StatusOr<std::vector<uint32_t>> CheckedIds(const v1::TokenIds& tokens,
                                                 const ServedModel& model) {
  for (int i = 0; i < tokens.ids_size(); ++i) {
    if (tokens.ids(i) < model.vocab) continue;
    return BadField(fmt::format("tokens.ids[{}]", i), "is {}; the vocabulary of {} ends at {}",
                    tokens.ids(i), model.name, model.vocab - 1);
  }
  return std::vector<uint32_t>(tokens.ids().begin(), tokens.ids().end());
}

absl::StatusOr<std::vector<uint32_t>> EncodePrompt(const v1::GenerateRequest& request,
                                                   const ServedModel& model, uint32_t max_tokens) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      if (request.text().empty()) return BadField("text", "is empty; a prompt is needed");
      RETURN_IF_ERROR(CheckTextSize("text", request.text().size(), model, max_tokens));
      return model.tokenizer->Encode(request.text(), {.add_special_tokens = true});
    case v1::GenerateRequest::kTokens:
      return CheckedIds(request.tokens(), model);
    case v1::GenerateRequest::kChat: {
      ASSIGN_OR_RETURN(const std::string text, RenderChat(request.chat(), model));
      RETURN_IF_ERROR(CheckTextSize("chat", text.size(), model, max_tokens));
      return model.tokenizer->Encode(text,
                                     {.add_special_tokens = false, .parse_special_tokens = true});
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return InvalidArgument("no prompt: set one of text, tokens, chat");
}

}  // namespace

absl::StatusOr<std::string> RenderChat(const v1::ChatPrompt& chat, const ServedModel& model) {
  if (model.chat_template == nullptr) {
    return FailedPrecondition("chat: {} has no chat template; send text or tokens", model.name);
  }
  if (chat.messages_size() < 1 || chat.messages_size() > kMaxMessages) {
    return BadField("chat.messages", "has {} messages; it must have 1 to {}", chat.messages_size(),
                    kMaxMessages);
  }
  RETURN_IF_ERROR(CheckTools(chat, model));
  ChatInput input;
  ASSIGN_OR_RETURN(input.tools, ToolsJson(chat));
  ASSIGN_OR_RETURN(input.extra, TemplateVariables(chat, model));
  for (int i = 0; i < chat.messages_size(); ++i) {
    RETURN_IF_ERROR(CheckRole(chat.messages(i).role(), i, model));
    ASSIGN_OR_RETURN(ChatJson message, MessageJson(chat.messages(i), i, model));
    input.messages.push_back(std::move(message));
  }
  input.add_generation_prompt = !chat.has_add_generation_prompt() || chat.add_generation_prompt();
  input.bos_token = model.tokenizer->bos_token();
  input.eos_token = model.tokenizer->eos_token();
  input.now_unix_s = UnixSeconds();
  auto text = model.chat_template->Render(input);
  if (!text.ok()) {
    return WithDetail(Annotate(text.status(), "chat"), {.field = "chat.messages"});
  }
  return text;
}

absl::StatusOr<std::vector<uint32_t>> PromptTokens(const v1::GenerateRequest& request,
                                                   const ServedModel& model, uint32_t max_tokens) {
  ASSIGN_OR_RETURN(std::vector<uint32_t> tokens, EncodePrompt(request, model, max_tokens));
  if (tokens.empty()) return InvalidArgument("the prompt has no tokens; at least 1 is needed");
  return tokens;
}

std::string PromptText(const v1::GenerateRequest& request, const ServedModel& model,
                       std::span<const uint32_t> tokens) {
  if (request.has_text()) return request.text();
  const v1::OutputOptions& output = request.output();
  return model.tokenizer->Decode(tokens,
                                 !output.has_skip_special_tokens() || output.skip_special_tokens());
}

}  // namespace penstock
