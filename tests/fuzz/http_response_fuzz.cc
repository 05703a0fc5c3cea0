// Bytes of an HTTP/1.1 server and of its event stream: whatever they are and in whatever pieces
// they come, the load generator reads the same status, body and events.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "lab/load/http_response_parser.h"
#include "lab/load/openai_event.h"
#include "lab/load/sse_parser.h"

namespace {

struct Seen {
  int status = 0;
  size_t taken = 0;
  bool done = false;
  bool failed = false;
  std::string body;
  std::string events;

  bool operator==(const Seen&) const = default;
};

void Describe(std::string_view data, std::string& out) {
  const auto event = penstock::ParseOpenAiEvent(data);
  out += fmt::format("[{}]{}\n", data, event.ok());
  if (!event.ok()) return;
  PENSTOCK_CHECK_LE(event->error_message.size(), 500u);
  out += fmt::format("{} {} {} {}\n", event->done, event->has_text, event->tokens.value_or(7),
                     event->finish_reason);
}

Seen Read(std::string_view bytes, size_t piece) {
  Seen seen;
  penstock::SseParser events([&](std::string_view data) { Describe(data, seen.events); });
  penstock::HttpResponseParser parser([&](std::string_view body) {
    seen.body += body;
    PENSTOCK_CHECK(events.Take(body));  // no event of these is as long as the limit
  });
  while (!bytes.empty() && !parser.done() && !parser.failed()) {
    const std::string_view part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    const size_t taken = parser.Take(part);
    PENSTOCK_CHECK(taken == part.size() || parser.done() || parser.failed());
    seen.taken += taken;
  }
  parser.TakeEnd();
  seen.status = parser.status();
  seen.done = parser.done();
  seen.failed = parser.failed();
  PENSTOCK_CHECK(seen.done != seen.failed);
  if (seen.failed) {
    PENSTOCK_CHECK(!parser.error().empty() && !parser.keep_alive());
    seen.taken = 0;  // what was looked at before the error depends on the pieces
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Seen whole = Read(bytes, bytes.size() + 1);
  PENSTOCK_CHECK(Read(bytes, 1 + data[0] % 7) == whole);
  const auto error = penstock::ParseOpenAiError(503, bytes);
  PENSTOCK_CHECK(error.kind.starts_with("503"));
  return 0;
}
