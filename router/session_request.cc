#include "router/session_request.h"

#include "router/prompt.h"

namespace penstock {

ModelLimits LimitsOf(const ServedModel& model, uint32_t max_model_len) {
  return {.name = model.name,
          .vocab = model.vocab,
          .max_model_len = max_model_len,
          .eos_token_ids = model.eos_token_ids};
}

absl::StatusOr<PreparedRequest> PrepareRequest(const PrepareArgs& args) {
  const ModelLimits limits = LimitsOf(args.model, args.max_model_len);
  ASSIGN_OR_RETURN(AnswerSpec answer, ValidateAnswer(args.request, limits, args.random));
  auto stops = StopMatcher::Create(answer.stop, answer.include_stop_in_output);
  if (!stops.ok()) return Annotate(stops.status(), "stop.stop");
  ASSIGN_OR_RETURN(std::vector<uint32_t> prompt,
                   PromptTokens(args.request, args.model, args.max_model_len));
  RETURN_IF_ERROR(FitToContext(prompt.size(), limits, answer));
  const std::string& id = args.request.client_request_id();
  return PreparedRequest{
      .session = {.request_id = id.empty() ? fmt::format("req-{:016x}", args.random) : id,
                  .prompt = std::move(prompt),
                  .answer = std::move(answer),
                  .continues_text = !args.request.has_chat(),
                  .received = args.received},
      .stops = *std::move(stops)};
}

}  // namespace penstock
