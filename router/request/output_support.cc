#include "router/request/output_support.h"

namespace penstock {
namespace {

constexpr char kNext[] =
    "start the router with --tool_format, or ask for JSON with response_format";

}  // namespace

absl::StatusOr<OutputSupport> FindOutputSupport(const std::string& format,
                                                const ChatTemplate* chat_template,
                                                const std::string& bos_token,
                                                const std::string& eos_token) {
  OutputSupport support;
  if (chat_template == nullptr) {
    support.why_no_calls = "the model has no chat template; give it one that shows tools";
    return support;
  }
  support.reasoning = FindReasoningNotation(chat_template->source());
  if (format == "none") {
    support.why_no_calls = "the router was started with --tool_format=none";
    return support;
  }
  const bool automatic = format.empty() || format == "auto";
  const CallNotation* notation =
      automatic ? FindCallNotation(chat_template->source()) : CallNotationOf(format);
  if (notation == nullptr && !automatic) return InvalidArgument("tool_format is {}", format);
  if (notation == nullptr) {
    support.why_no_calls =
        fmt::format("the chat template shows no known notation of tool calls; {}", kNext);
    return support;
  }
  const auto style = ProbeTemplate(*chat_template, *notation, bos_token, eos_token);
  if (!style.ok() && !automatic) {
    return Annotate(style.status(), fmt::format("tool_format is {}", format));
  }
  if (style.ok()) {
    support.calls = notation;
    support.call_style = *style;
  } else {
    support.why_no_calls = fmt::format("{}; {}", Message(style.status()), kNext);
  }
  return support;
}

}  // namespace penstock
