#include "router/session/model_calls.h"

#include "router/request/error_detail.h"
#include "router/request/prompt.h"
#include "router/session/session_request.h"

namespace penstock {
namespace {

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
  for (int i = 0; i < request.token_ids_size(); ++i) {
    if (request.token_ids(i) < model.vocab) continue;
    return BadField(fmt::format("token_ids[{}]", i), "is {}; the vocabulary of {} ends at {}",
                    request.token_ids(i), model.name, model.vocab - 1);
  }
  const std::vector<uint32_t> ids(request.token_ids().begin(), request.token_ids().end());
  v1::DetokenizeResponse response;
  response.set_text(model.tokenizer->Decode(ids, /*skip_special_tokens=*/false));
  return response;
}

}  // namespace penstock
