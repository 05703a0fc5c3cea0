#pragma once

#include <string>

#include "base/status.h"
#include "model/output/template_probe.h"

namespace penstock {

// The notations of a model's calls and reasoning, found from its chat template.
struct OutputSupport {
  const CallNotation* calls = nullptr;  // nullptr: tools are refused
  CallStyle call_style;
  std::string why_no_calls;  // completes "tools are not supported: ..."
  const ReasoningNotation* reasoning = nullptr;
};

// `format` is the value of --tool_format. FAILED_PRECONDITION when the template cannot show calls
// of the notation that it names; with "auto" such a model serves without tools. `chat_template` may
// be nullptr.
absl::StatusOr<OutputSupport> FindOutputSupport(const std::string& format,
                                                const ChatTemplate* chat_template,
                                                const std::string& bos_token,
                                                const std::string& eos_token);

}  // namespace penstock
