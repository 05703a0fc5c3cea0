#include "router/session/model_calls.h"

#include "router/request/error_detail.h"
#include "router/request/prompt.h"
#include "router/session/session_request.h"

namespace penstock {
namespace {

// Limits of both directions: answers are held in memory until the client has read them.
constexpr size_t kTokensMax = 262'144;
constexpr size_t kTextBytesMax = 4 << 20;

absl::Status CheckTokenCount(std::string_view field, size_t tokens) {
  if (tokens <= kTokensMax) return absl::OkStatus();
  return BadField(field, "has {} tokens; the limit is {}", tokens, kTokensMax);
}

absl::Status CheckDecodedSize(const google::protobuf::RepeatedField<uint32_t>& ids,
                              const Tokenizer& tokenizer) {
  size_t bytes = 0;
  for (const uint32_t id : ids) bytes += tokenizer.TokenBytes(id).size();
  if (bytes <= kTextBytesMax) return absl::OkStatus();
  return BadField("token_ids", "stand for {} bytes of text; the limit is {}", bytes, kTextBytesMax);
}

absl::StatusOr<std::vector<uint32_t>> Encode(const v1::TokenizeRequest& request,
                                             const ServedModel& model) {
  if (request.has_text()) {
    return model.tokenizer->Encode(request.text(),
                                   {.add_special_tokens = request.add_special_tokens()});
  }
  if (!request.has_chat()) return InvalidArgument("no prompt: set one of text, chat");
  ASSIGN_OR_RETURN(const std::string text, RenderChat(request.chat(), model));
  return model.tokenizer->Encode(
      text, {.add_special_tokens = request.add_special_tokens(), .parse_special_tokens = true});
}

}  // namespace

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request,
                                              const ServedModel& model, uint32_t max_model_len) {
  RETURN_IF_ERROR(CheckModelName(request.model(), LimitsOf(model, max_model_len)));
  ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, Encode(request, model));
  RETURN_IF_ERROR(CheckTokenCount(request.has_chat() ? "chat" : "text", ids.size()));
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(ids.begin(), ids.end());
  response.set_count(static_cast<uint32_t>(ids.size()));
  response.set_max_model_len(max_model_len);
  if (!request.return_strings()) return response;
  for (const uint32_t id : ids) {
    response.add_tokens(model.tokenizer->Decode({&id, 1}, /*skip_special_tokens=*/false));
  }
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                  const ServedModel& model) {
  RETURN_IF_ERROR(CheckModelName(request.model(), LimitsOf(model, model.max_model_len)));
  RETURN_IF_ERROR(CheckTokenCount("token_ids", static_cast<size_t>(request.token_ids_size())));
  for (int i = 0; i < request.token_ids_size(); ++i) {
    if (request.token_ids(i) < model.vocab) continue;
    return BadField(fmt::format("token_ids[{}]", i), "is {}; the vocabulary of {} ends at {}",
                    request.token_ids(i), model.name, model.vocab - 1);
  }
  RETURN_IF_ERROR(CheckDecodedSize(request.token_ids(), *model.tokenizer));
  const std::vector<uint32_t> ids(request.token_ids().begin(), request.token_ids().end());
  v1::DetokenizeResponse response;
  response.set_text(model.tokenizer->Decode(ids, /*skip_special_tokens=*/false));
  return response;
}

}  // namespace penstock
