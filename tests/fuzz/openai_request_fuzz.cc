// Bodies of OpenAI's and Anthropic's APIs: whatever they are, they become a request or an error
// that is JSON.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "router/anthropic/error.h"
#include "router/anthropic/request.h"
#include "router/openai/error.h"
#include "router/openai/request.h"
#include "router/responses/request.h"
#include "router/responses/response_json.h"

namespace {

template <class Parsed>
void Check(const absl::StatusOr<Parsed>& parsed) {
  if (parsed.ok()) return;
  const penstock::HttpResponse response = penstock::ErrorResponse(parsed.status());
  PENSTOCK_CHECK_EQ(response.status, 400);
  PENSTOCK_CHECK(penstock::ParseJson(response.body).ok());
}

template <class Parsed>
void CheckMessage(const absl::StatusOr<Parsed>& parsed) {
  if (parsed.ok()) return;
  const penstock::HttpResponse response = penstock::MessageErrorResponse(parsed.status(), "req");
  PENSTOCK_CHECK_EQ(response.status, 400);
  PENSTOCK_CHECK(penstock::ParseJson(response.body).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto body = penstock::ParseJson(bytes, {.depth = 16, .values = 4096});
  Check(body);
  if (!body.ok()) return 0;
  const auto chat = penstock::ParseChatRequest(*body, bytes);
  if (chat.ok()) PENSTOCK_CHECK_EQ(chat->prompts.size(), 1u);
  Check(chat);
  Check(penstock::ParseCompletionRequest(*body, bytes));
  const auto response = penstock::ParseResponseRequest(*body, bytes);
  if (response.ok()) {
    PENSTOCK_CHECK(penstock::ParseJson("{" + penstock::EchoMembers(*body) + "}").ok());
  }
  Check(response);
  Check(penstock::ParseTokenizeRequest(*body, bytes));
  Check(penstock::ParseDetokenizeRequest(*body));
  CheckMessage(penstock::ParseMessageRequest(*body, bytes));
  CheckMessage(penstock::ParseCountRequest(*body, bytes));
  return 0;
}
