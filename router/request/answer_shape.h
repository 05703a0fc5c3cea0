#pragma once

#include <span>

#include "base/status.h"
#include "proto/inference.pb.h"
#include "router/request/answer_spec.h"
#include "router/request/served_model.h"

namespace penstock {

// Completes `answer`, a result of ValidateAnswer, with what tools and reasoning ask of it: the
// grammar, and the parts that the answer's text is split into. `prompt` is the request's prompt.
// INVALID_ARGUMENT names the tool, or the limit. Pure.
absl::Status ShapeAnswer(const v1::GenerateRequest& request, const ServedModel& model,
                         std::span<const uint32_t> prompt, AnswerSpec& answer);

}  // namespace penstock
