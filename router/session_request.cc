#include "router/session_request.h"

#include "router/error_detail.h"
#include "router/prompt.h"

namespace penstock {

namespace {

constexpr size_t kMaxCacheBytes = 128;

absl::Status CheckCache(const v1::CacheControl& cache) {
  if (cache.salt().size() > kMaxCacheBytes) {
    return BadField("cache.salt", "has {} bytes; the limit is {}", cache.salt().size(),
                    kMaxCacheBytes);
  }
  if (cache.affinity_key().size() > kMaxCacheBytes) {
    return BadField("cache.affinity_key", "has {} bytes; the limit is {}",
                    cache.affinity_key().size(), kMaxCacheBytes);
  }
  return absl::OkStatus();
}

}  // namespace

ModelLimits LimitsOf(const ServedModel& model, uint32_t max_model_len) {
  return {.name = model.name,
          .vocab = model.vocab,
          .max_model_len = max_model_len,
          .eos_token_ids = model.eos_token_ids};
}

absl::StatusOr<PreparedRequest> PrepareRequest(const PrepareArgs& args) {
  RETURN_IF_ERROR(CheckCache(args.request.cache()));
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
                  .cache_salt = CacheSalt(args.caller, args.request.cache().salt()),
                  .received = args.received},
      .stops = *std::move(stops)};
}

}  // namespace penstock
