#pragma once

#include "base/status.h"
#include "model/template/chat_template.h"
#include "proto/inference.pb.h"
#include "router/request/served_model.h"

namespace penstock {

// The message at chat.messages[index] as templates have it. INVALID_ARGUMENT names the field. Pure.
absl::StatusOr<ChatJson> MessageJson(const v1::Message& message, int index,
                                     const ServedModel& model);

// The template's further variables: template_options, and those that turn reasoning on or off.
// INVALID_ARGUMENT for one that the template does not name. Pure.
absl::StatusOr<ChatJson> TemplateVariables(const v1::ChatPrompt& chat, const ServedModel& model);

}  // namespace penstock
