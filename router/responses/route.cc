#include "router/responses/route.h"

#include "base/clock.h"
#include "router/responses/request.h"
#include "router/responses/response_writer.h"
#include "router/session/entropy.h"

namespace penstock {
namespace {

absl::StatusOr<AnswerPlan> PlanResponse(const Json& body, std::string_view text,
                                        const ServedModel& model) {
  ASSIGN_OR_RETURN(ResponseRequest request, ParseResponseRequest(body, text));
  ResponseStyle style{.id = fmt::format("{:016x}", RandomU64()),
                      .model = model.name,
                      .created = UnixSeconds(),
                      .request = EchoMembers(body)};
  return AnswerPlan{.prompts = {std::move(request.generate)},
                    .stream = request.stream,
                    .format =
                        [style = std::move(style)](uint32_t, uint32_t) mutable {
                          return std::make_unique<ResponseWriter>(std::move(style));
                        },
                    .names = std::move(request.names),
                    .prompt_names = std::move(request.prompt_names)};
}

}  // namespace

AnswerRoute ResponsesRoute() {
  return {.path = "/v1/responses", .endpoint = Endpoint::kResponses, .plan = &PlanResponse};
}

}  // namespace penstock
