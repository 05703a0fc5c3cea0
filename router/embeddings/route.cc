#include "router/embeddings/route.h"

#include "router/embeddings/embedding_writer.h"
#include "router/embeddings/request.h"

namespace penstock {
namespace {

absl::StatusOr<AnswerPlan> PlanEmbeddings(const Json& body, std::string_view /*text*/,
                                          const ServedModel& model) {
  ASSIGN_OR_RETURN(EmbeddingRequest request, ParseEmbeddingRequest(body));
  return AnswerPlan{.prompts = std::move(request.prompts),
                    .stream = false,
                    .format =
                        [name = model.name, encoding = request.encoding](uint32_t, uint32_t) {
                          return std::make_unique<EmbeddingWriter>(name, encoding);
                        },
                    .names = {{"output.embedding.dimensions", "dimensions"},
                              {"output.embedding", "model"},
                              {"text", "input"},
                              {"tokens.ids", "input"}}};
}

}  // namespace

AnswerRoute EmbeddingsRoute() {
  return {.path = "/v1/embeddings", .endpoint = Endpoint::kEmbeddings, .plan = &PlanEmbeddings};
}

}  // namespace penstock
