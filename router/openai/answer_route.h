#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "router/api/answer_format.h"
#include "router/api/error_parts.h"
#include "router/inference/inference_core.h"
#include "router/request/json.h"

namespace penstock {

// A parsed request, and how its answer is written.
struct AnswerPlan {
  std::vector<v1::GenerateRequest> prompts;
  bool stream = false;
  // Called once: makes the writer of the answer, when all prompts are admitted.
  std::function<std::unique_ptr<AnswerFormat>(uint32_t choices, uint32_t prompt_tokens)> format;
  std::vector<FieldName> names = {};         // the API's, for errors
  std::vector<FieldName> prompt_names = {};  // AnswerCallArgs
};

// A path whose requests are answered by the model, in OpenAI's form of errors.
struct AnswerRoute {
  std::string_view path;
  Endpoint endpoint = Endpoint::kChat;
  // INVALID_ARGUMENT names the field and its allowed values. `text` is the text of `body`.
  absl::StatusOr<AnswerPlan> (*plan)(const Json& body, std::string_view text,
                                     const ServedModel& model) = nullptr;
};

}  // namespace penstock
