#pragma once

#include "base/status.h"
#include "model/output/output_format.h"
#include "model/template/chat_template.h"

namespace penstock {

// How a template wants tools and earlier calls. Templates of some families write an object as JSON,
// those of others join the text of one; the wrong one shows the model JSON within a string.
struct CallStyle {
  bool arguments_as_text = false;
  bool content_null = false;  // of a message that has only calls; else it is ""
  bool describes = false;     // a tool without a description has an empty one
};

// One earlier call, as templates have it in `tool_calls` of a message. `arguments` is JSON.
absl::StatusOr<ChatJson> CallJson(const CallStyle& style, std::string_view id,
                                  std::string_view name, std::string_view arguments);

// Renders a conversation with a call in each style, and takes the first in which the parser finds
// that call again. FAILED_PRECONDITION says what came of them. `bos_token` and `eos_token` are the
// model's. Pure.
absl::StatusOr<CallStyle> ProbeTemplate(const ChatTemplate& chat_template,
                                        const CallNotation& notation, const std::string& bos_token,
                                        const std::string& eos_token);

}  // namespace penstock
