#include "router/request/prompt.h"

#include "base/clock.h"
#include "kvstore/names/kv_policy.h"
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
constexpr size_t kSeparatorBytesMax = 64;

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

// Tokenizes text whose re-usable parts are between separators: each piece by itself, so that a
// part has the same tokens wherever it is.
absl::StatusOr<PromptIdsAndParts> EncodePieces(std::string_view text, std::string_view separator,
                                               const ServedModel& model, EncodeOptions options) {
  PromptIdsAndParts prompt;
  size_t pieces = 0;
  while (true) {
    const size_t end = text.find(separator);
    const std::string piece(text.substr(0, end));
    if (pieces == 0 || !piece.empty()) {  // the first may be special tokens alone
      ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, model.tokenizer->Encode(piece, options));
      prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    }
    options.add_special_tokens = false;
    ++pieces;
    if (end == std::string_view::npos) break;
    // Empty parts are none.
    const auto bound = static_cast<uint32_t>(prompt.ids.size());
    if (prompt.parts.empty() || prompt.parts.back() < bound) prompt.parts.push_back(bound);
    text.remove_prefix(end + separator.size());
  }
  if (prompt.parts.size() >= 2 && prompt.parts.size() <= kBlendPartsMax + 1) return prompt;
  return BadField("blend_separator",
                  "divides the prompt into {} pieces; there must be 1 to {} re-usable parts, each "
                  "between two separators",
                  pieces, kBlendPartsMax);
}

absl::StatusOr<PromptIdsAndParts> EncodeText(const v1::GenerateRequest& request,
                                             std::string_view text, const ServedModel& model,
                                             const EncodeOptions& options) {
  if (!request.blend_separator().empty()) {
    return EncodePieces(text, request.blend_separator(), model, options);
  }
  ASSIGN_OR_RETURN(std::vector<uint32_t> ids, model.tokenizer->Encode(text, options));
  return PromptIdsAndParts{.ids = std::move(ids), .parts = {}};
}

// The parts of a prompt that is tokens.
absl::StatusOr<PromptIdsAndParts> CheckedParts(const v1::GenerateRequest& request,
                                               std::vector<uint32_t> ids) {
  PromptIdsAndParts prompt{.ids = std::move(ids),
                           .parts = {request.blend_parts().begin(), request.blend_parts().end()}};
  const std::vector<uint32_t>& parts = prompt.parts;
  if (parts.empty()) return prompt;
  if (parts.size() < 2 || parts.size() > kBlendPartsMax + 1) {
    return BadField("blend_parts", "has {} entries; it may have 2 to {}", parts.size(),
                    kBlendPartsMax + 1);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if ((i == 0 || parts[i - 1] < parts[i]) && parts[i] <= prompt.ids.size()) continue;
    return BadField(fmt::format("blend_parts[{}]", i),
                    "is {}; entries must ascend, up to the {} tokens of the prompt", parts[i],
                    prompt.ids.size());
  }
  return prompt;
}

absl::Status CheckBlendFields(const v1::GenerateRequest& request) {
  const size_t bytes = request.blend_separator().size();
  if (bytes > kSeparatorBytesMax) {
    return BadField("blend_separator", "has {} bytes; it may have 1 to {}", bytes,
                    kSeparatorBytesMax);
  }
  if (bytes > 0 && request.has_tokens()) {
    return BadField("blend_separator", "is for text and chats; of tokens set blend_parts");
  }
  if (request.blend_parts_size() > 0 && !request.has_tokens()) {
    return BadField("blend_parts", "is for tokens; of text and chats set blend_separator");
  }
  return absl::OkStatus();
}

absl::StatusOr<PromptIdsAndParts> EncodePrompt(const v1::GenerateRequest& request,
                                               const ServedModel& model, uint32_t max_tokens) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      if (request.text().empty()) return BadField("text", "is empty; a prompt is needed");
      RETURN_IF_ERROR(CheckTextSize("text", request.text().size(), model, max_tokens));
      return EncodeText(request, request.text(), model, {.add_special_tokens = true});
    case v1::GenerateRequest::kTokens: {
      ASSIGN_OR_RETURN(std::vector<uint32_t> ids, CheckedIds(request.tokens(), model));
      return CheckedParts(request, std::move(ids));
    }
    case v1::GenerateRequest::kChat: {
      ASSIGN_OR_RETURN(const std::string text, RenderChat(request.chat(), model));
      RETURN_IF_ERROR(CheckTextSize("chat", text.size(), model, max_tokens));
      return EncodeText(request, text, model,
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

absl::StatusOr<PromptIdsAndParts> PromptTokens(const v1::GenerateRequest& request,
                                               const ServedModel& model, uint32_t max_tokens) {
  RETURN_IF_ERROR(CheckBlendFields(request));
  ASSIGN_OR_RETURN(PromptIdsAndParts prompt, EncodePrompt(request, model, max_tokens));
  if (prompt.ids.empty()) return InvalidArgument("the prompt has no tokens; at least 1 is needed");
  return prompt;
}

std::string PromptText(const v1::GenerateRequest& request, const ServedModel& model,
                       std::span<const uint32_t> tokens) {
  if (request.has_text()) return request.text();
  const v1::OutputOptions& output = request.output();
  return model.tokenizer->Decode(tokens,
                                 !output.has_skip_special_tokens() || output.skip_special_tokens());
}

}  // namespace penstock
