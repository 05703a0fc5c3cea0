#pragma once

#include "base/status.h"
#include "proto/inference.pb.h"
#include "router/request/served_model.h"

namespace penstock {

// The API calls that need no worker. Errors name the field. Pure.

absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request,
                                              const ServedModel& model, uint32_t max_model_len);

absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request,
                                                  const ServedModel& model);

}  // namespace penstock
