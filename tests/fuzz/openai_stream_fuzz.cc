// An event stream of an OpenAI API: in whatever pieces its bytes arrive, the load generator reads
// the same events.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "lab/load/openai_event.h"
#include "lab/load/sse_parser.h"

namespace {

void Describe(std::string_view data, std::string& out) {
  const auto event = penstock::ParseOpenAiEvent(data);
  out += fmt::format("[{}]{}\n", data, event.ok());
  if (!event.ok()) return;
  PENSTOCK_CHECK_LE(event->error_message.size(), 500u);
  out += fmt::format("{} {} {} {}\n", event->done, event->has_text, event->tokens.value_or(7),
                     event->finish_reason);
}

std::string Read(std::string_view bytes, size_t piece) {
  std::string seen;
  penstock::SseParser events([&](std::string_view data) { Describe(data, seen); });
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    PENSTOCK_CHECK(events.Take(part));  // no event of these is as long as the limit
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string whole = Read(bytes, bytes.size() + 1);
  PENSTOCK_CHECK(Read(bytes, 1 + data[0] % 7) == whole);
  const auto error = penstock::ParseOpenAiError(503, bytes);
  PENSTOCK_CHECK(error.kind.starts_with("503"));
  return 0;
}
