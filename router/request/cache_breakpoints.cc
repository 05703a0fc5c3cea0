#include "router/request/cache_breakpoints.h"

#include <algorithm>

#include "router/request/error_detail.h"
#include "router/request/prompt.h"

namespace penstock {
namespace {

constexpr size_t kMaxBreakpoints = 4;  // each costs one rendering of the chat
constexpr size_t kMarkTokens = 128;    // upper bound of the tokens that Longer and OtherTools add
constexpr Duration kDefaultTtl = std::chrono::minutes(5);
constexpr int64_t kLongestTtlSeconds = 86'400;

absl::StatusOr<Duration> TtlOf(const std::string& field, const v1::CacheBreakpoint& breakpoint) {
  if (!breakpoint.has_ttl()) return kDefaultTtl;
  const google::protobuf::Duration& ttl = breakpoint.ttl();
  if (ttl.seconds() < 1 || ttl.nanos() < 0 || ttl.seconds() > kLongestTtlSeconds) {
    return BadField(field + ".ttl", "is {} s {} ns; it may be 1 s to a day", ttl.seconds(),
                    ttl.nanos());
  }
  return std::chrono::seconds(ttl.seconds());
}

// The same chat with text appended to one part. The token ids of the two chats are equal up to the
// end of that part, which locates the breakpoint. Cutting the chat off there instead does not work:
// some templates refuse a chat that ends so.
v1::GenerateRequest Longer(const v1::ChatPrompt& chat, int message, int part) {
  v1::GenerateRequest longer;
  *longer.mutable_chat() = chat;
  longer.mutable_chat()->mutable_messages(message)->mutable_content(part)->mutable_text()->append(
      "\n|");
  return longer;
}

// The same chat with another tool behind this one. The token ids are equal up to the end of it.
v1::GenerateRequest OtherTools(const v1::ChatPrompt& chat, int tool) {
  v1::GenerateRequest other;
  *other.mutable_chat() = chat;
  other.mutable_chat()->mutable_tools()->DeleteSubrange(tool + 1, chat.tools_size() - tool - 1);
  v1::Tool& more = *other.mutable_chat()->add_tools();
  more.set_name("another-tool");
  more.set_parameters(R"({"type": "object"})");
  other.mutable_chat()->clear_tool_choice();
  return other;
}

// The length of the longest common prefix.
uint32_t Common(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                               a.begin());
}

}  // namespace

absl::StatusOr<std::vector<PrefixBreakpoint>> FindBreakpoints(const v1::GenerateRequest& request,
                                                              const ServedModel& model,
                                                              std::span<const uint32_t> prompt) {
  std::vector<PrefixBreakpoint> found;
  const auto add = [&](const std::string& field, const v1::CacheBreakpoint& breakpoint,
                       uint32_t tokens) -> absl::Status {
    ASSIGN_OR_RETURN(const Duration ttl, TtlOf(field, breakpoint));
    found.push_back({.tokens = tokens, .ttl = ttl});
    return absl::OkStatus();
  };
  if (request.cache().has_prompt()) {
    RETURN_IF_ERROR(
        add("cache.prompt", request.cache().prompt(), static_cast<uint32_t>(prompt.size())));
  }
  // `other` differs from the request behind the breakpoint only.
  const auto add_before = [&](const std::string& field, const v1::CacheBreakpoint& breakpoint,
                              const v1::GenerateRequest& other) -> absl::Status {
    if (found.size() == kMaxBreakpoints) {
      return BadField(field, "is one too many; a request may have {}", kMaxBreakpoints);
    }
    // The other chat may exceed the prompt, whose size was checked, by a few tokens.
    ASSIGN_OR_RETURN(
        const PromptIdsAndParts marked,
        PromptTokens(other, model, static_cast<uint32_t>(prompt.size() + kMarkTokens)));
    return add(field, breakpoint, Common(prompt, marked.ids));
  };
  const v1::ChatPrompt& chat = request.chat();
  for (int i = 0; i < chat.tools_size(); ++i) {
    if (!chat.tools(i).has_breakpoint()) continue;
    RETURN_IF_ERROR(add_before(fmt::format("chat.tools[{}].breakpoint", i),
                               chat.tools(i).breakpoint(), OtherTools(chat, i)));
  }
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::Message& message = chat.messages(i);
    for (int j = 0; j < message.content_size(); ++j) {
      if (!message.content(j).has_breakpoint()) continue;
      RETURN_IF_ERROR(add_before(fmt::format("chat.messages[{}].content[{}].breakpoint", i, j),
                                 message.content(j).breakpoint(), Longer(chat, i, j)));
    }
  }
  return found;
}

}  // namespace penstock
