#include "router/request/prompt.h"

#include <absl/strings/str_replace.h>

#include <algorithm>
#include <iterator>

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

// Text of several pieces.
struct EncodedPieces {
  std::vector<uint32_t> ids;
  std::vector<uint32_t> bounds;  // where each piece but the first begins
};

// Tokenizes text that is divided by separators: each piece by itself, so that it has the same
// tokens wherever it is.
absl::StatusOr<EncodedPieces> EncodePieces(std::string_view text, std::string_view separator,
                                           const ServedModel& model, EncodeOptions options) {
  EncodedPieces encoded;
  while (true) {
    const size_t end = text.find(separator);
    const std::string piece(text.substr(0, end));
    if (encoded.bounds.empty() || !piece.empty()) {  // the first may be special tokens alone
      ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, model.tokenizer->Encode(piece, options));
      encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
    }
    options.add_special_tokens = false;
    if (end == std::string_view::npos) return encoded;
    encoded.bounds.push_back(static_cast<uint32_t>(encoded.ids.size()));
    text.remove_prefix(end + separator.size());
  }
}

// The prompt whose re-usable parts are between two separators. Empty parts are none.
absl::StatusOr<PromptIdsAndParts> WithParts(EncodedPieces encoded) {
  PromptIdsAndParts prompt{.ids = std::move(encoded.ids)};
  std::unique_copy(encoded.bounds.begin(), encoded.bounds.end(), std::back_inserter(prompt.parts));
  if (prompt.parts.size() >= 2 && prompt.parts.size() <= kBlendPartsMax + 1) return prompt;
  return BadField("blend_separator",
                  "divides the prompt into {} pieces; there must be 1 to {} re-usable parts, each "
                  "between two separators",
                  encoded.bounds.size() + 1, kBlendPartsMax);
}

// The spans [bounds[0], bounds[1]), [bounds[2], bounds[3]) and so on, without empty ones.
std::vector<TokenSpan> SpansOf(std::span<const uint32_t> bounds) {
  std::vector<TokenSpan> spans;
  for (size_t i = 0; i + 1 < bounds.size(); i += 2) {
    if (bounds[i] < bounds[i + 1]) spans.push_back({.begin = bounds[i], .end = bounds[i + 1]});
  }
  return spans;
}

// The prompt whose spans to keep are between an odd marker and the next one.
absl::StatusOr<PromptIdsAndParts> WithKeptSpans(EncodedPieces encoded) {
  PromptIdsAndParts prompt{.ids = std::move(encoded.ids), .keep_spans = SpansOf(encoded.bounds)};
  const size_t markers = encoded.bounds.size();
  if (markers % 2 == 0 && !prompt.keep_spans.empty() && prompt.keep_spans.size() <= kKeepSpansMax) {
    return prompt;
  }
  return BadField("keep_marker",
                  "is {} times in the prompt, with text in {} spans; there must be 1 to {} spans, "
                  "each between two markers",
                  markers, prompt.keep_spans.size(), kKeepSpansMax);
}

absl::StatusOr<PromptIdsAndParts> EncodeText(const v1::GenerateRequest& request,
                                             std::string_view text, const ServedModel& model,
                                             const EncodeOptions& options) {
  if (!request.blend_separator().empty()) {
    ASSIGN_OR_RETURN(EncodedPieces encoded,
                     EncodePieces(text, request.blend_separator(), model, options));
    return WithParts(std::move(encoded));
  }
  if (!request.keep_marker().empty()) {
    ASSIGN_OR_RETURN(EncodedPieces encoded,
                     EncodePieces(text, request.keep_marker(), model, options));
    return WithKeptSpans(std::move(encoded));
  }
  ASSIGN_OR_RETURN(std::vector<uint32_t> ids, model.tokenizer->Encode(text, options));
  return PromptIdsAndParts{.ids = std::move(ids)};
}

// The `parts` of a prompt that is tokens.
absl::Status CheckParts(const std::vector<uint32_t>& parts, size_t tokens) {
  if (parts.empty()) return absl::OkStatus();
  if (parts.size() < 2 || parts.size() > kBlendPartsMax + 1) {
    return BadField("blend_parts", "has {} entries; it may have 2 to {}", parts.size(),
                    kBlendPartsMax + 1);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if ((i == 0 || parts[i - 1] < parts[i]) && parts[i] <= tokens) continue;
    return BadField(fmt::format("blend_parts[{}]", i),
                    "is {}; entries must ascend, up to the {} tokens of the prompt", parts[i],
                    tokens);
  }
  return absl::OkStatus();
}

// The spans to keep of a prompt that is tokens.
absl::Status CheckKeptSpans(const std::vector<uint32_t>& bounds, size_t tokens) {
  if (bounds.size() % 2 != 0 || bounds.size() > 2 * kKeepSpansMax) {
    return BadField("keep_spans", "has {} entries; it must have an even number, up to {}",
                    bounds.size(), 2 * kKeepSpansMax);
  }
  for (size_t i = 0; i < bounds.size(); ++i) {
    const uint32_t least = i == 0 ? 0 : bounds[i - 1] + (i % 2);  // a span has 1 token or more
    if (least <= bounds[i] && bounds[i] <= tokens) continue;
    return BadField(fmt::format("keep_spans[{}]", i),
                    "is {}; spans must ascend, be apart and not empty, up to the {} tokens of the "
                    "prompt",
                    bounds[i], tokens);
  }
  return absl::OkStatus();
}

absl::StatusOr<PromptIdsAndParts> CheckedMarks(const v1::GenerateRequest& request,
                                               std::vector<uint32_t> ids) {
  PromptIdsAndParts prompt{.ids = std::move(ids),
                           .parts = {request.blend_parts().begin(), request.blend_parts().end()}};
  RETURN_IF_ERROR(CheckParts(prompt.parts, prompt.ids.size()));
  const std::vector<uint32_t> bounds(request.keep_spans().begin(), request.keep_spans().end());
  RETURN_IF_ERROR(CheckKeptSpans(bounds, prompt.ids.size()));
  prompt.keep_spans = SpansOf(bounds);
  return prompt;
}

// Two fields that mark something: a string in text and chats, and positions of tokens.
struct MarkFields {
  std::string_view marker_field;
  const std::string& marker;
  std::string_view positions_field;
  int positions = 0;
};

absl::Status CheckMarkFields(const MarkFields& marks, bool has_tokens) {
  const size_t bytes = marks.marker.size();
  if (bytes > kSeparatorBytesMax) {
    return BadField(std::string(marks.marker_field), "has {} bytes; it may have 1 to {}", bytes,
                    kSeparatorBytesMax);
  }
  if (bytes > 0 && has_tokens) {
    return BadField(std::string(marks.marker_field), "is for text and chats; of tokens set {}",
                    marks.positions_field);
  }
  if (marks.positions > 0 && !has_tokens) {
    return BadField(std::string(marks.positions_field), "is for tokens; of text and chats set {}",
                    marks.marker_field);
  }
  return absl::OkStatus();
}

absl::Status CheckMarks(const v1::GenerateRequest& request) {
  RETURN_IF_ERROR(CheckMarkFields({.marker_field = "blend_separator",
                                   .marker = request.blend_separator(),
                                   .positions_field = "blend_parts",
                                   .positions = request.blend_parts_size()},
                                  request.has_tokens()));
  RETURN_IF_ERROR(CheckMarkFields({.marker_field = "keep_marker",
                                   .marker = request.keep_marker(),
                                   .positions_field = "keep_spans",
                                   .positions = request.keep_spans_size()},
                                  request.has_tokens()));
  if (!request.keep_marker().empty() && !request.blend_separator().empty()) {
    return BadField("keep_marker", "is for evictions, and blend_separator for blends; set one");
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
      return CheckedMarks(request, std::move(ids));
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

// The request's text without its markers.
std::string Unmarked(const v1::GenerateRequest& request) {
  if (request.keep_marker().empty()) return request.text();
  return absl::StrReplaceAll(request.text(), {{request.keep_marker(), ""}});
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
  ASSIGN_OR_RETURN(input.tools, ToolsJson(chat, model));
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
  RETURN_IF_ERROR(CheckMarks(request));
  ASSIGN_OR_RETURN(PromptIdsAndParts prompt, EncodePrompt(request, model, max_tokens));
  if (prompt.ids.empty()) return InvalidArgument("the prompt has no tokens; at least 1 is needed");
  return prompt;
}

std::string PromptText(const v1::GenerateRequest& request, const ServedModel& model,
                       std::span<const uint32_t> tokens) {
  if (request.has_text()) return Unmarked(request);
  const v1::OutputOptions& output = request.output();
  return model.tokenizer->Decode(tokens,
                                 !output.has_skip_special_tokens() || output.skip_special_tokens());
}

}  // namespace penstock
