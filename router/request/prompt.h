#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kvstore/names/kv_policy.h"
#include "proto/inference.pb.h"
#include "router/request/served_model.h"

// Room router/request: checks client requests and turns them into tokens, sampling settings and
// callers (tenants and API keys). Its functions know inference.proto and the served model; they may
// not know workers, placement, sessions or wire formats.
namespace penstock {

// Renders the chat with the model's template. INVALID_ARGUMENT names the message and the error,
// with the template's own text when the template refuses the chat; FAILED_PRECONDITION when the
// model has no template.
absl::StatusOr<std::string> RenderChat(const v1::ChatPrompt& chat, const ServedModel& model);

// A request's prompt.
struct PromptIdsAndParts {
  std::vector<uint32_t> ids;
  // Of a request with blend_separator or blend_parts: where its re-usable parts begin, and behind
  // them where the last one ends. Else empty.
  std::vector<uint32_t> parts = {};
  // The spans that keep_marker or keep_spans marks, in the form of KvEviction::spans. Else empty.
  std::vector<TokenSpan> keep_spans = {};
};

// The token ids of a request's prompt, whether it is text, tokens or a chat. INVALID_ARGUMENT when
// there is no prompt, it is empty, a token is outside the vocabulary, the text has more bytes
// than any `max_tokens` tokens can have, or its parts or spans are marked wrongly.
absl::StatusOr<PromptIdsAndParts> PromptTokens(const v1::GenerateRequest& request,
                                               const ServedModel& model, uint32_t max_tokens);

// The text of a request's prompt, which is text, or token ids: `tokens`, whose special ones are
// left out unless the request wants them.
std::string PromptText(const v1::GenerateRequest& request, const ServedModel& model,
                       std::span<const uint32_t> tokens);

}  // namespace penstock
