// Bytes of an HTTP/1.1 connection: whatever they are and in whatever pieces they come, the parser
// reads the same requests, or the same error, and holds no more than its limits.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "http/http1/http1_parser.h"

namespace {

constexpr penstock::HttpLimits kLimits{
    .head_bytes = 512, .target_bytes = 64, .headers = 8, .body_bytes = 256};

void Describe(const penstock::HttpRequest& request, std::string& out) {
  PENSTOCK_CHECK_LE(request.body.size(), kLimits.body_bytes);
  PENSTOCK_CHECK_LE(request.head.headers.size(), kLimits.headers);
  PENSTOCK_CHECK(request.head.path.starts_with('/'));
  out += request.head.method + " " + request.head.path + "?" + request.head.query + "\n";
  for (const auto& header : request.head.headers) {
    PENSTOCK_CHECK(header.value.find('\n') == std::string::npos);
    out += header.name + ":" + header.value + "\n";
  }
  out += request.body + "\n";
}

// The parser's result for `bytes` that come `piece` at a time.
std::string Read(std::string_view bytes, size_t piece) {
  penstock::Http1Parser parser(kLimits);
  std::string out;
  while (!bytes.empty()) {
    std::string_view part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    while (true) {
      const auto event = parser.Take(part);
      if (event == penstock::Http1Parser::Event::kMore) {
        PENSTOCK_CHECK(part.empty());
        break;
      }
      if (event == penstock::Http1Parser::Event::kError) {
        PENSTOCK_CHECK(parser.error().status >= 400 && parser.error().status < 600);
        return out + std::to_string(parser.error().status);
      }
      if (event == penstock::Http1Parser::Event::kHead) continue;
      Describe(parser.TakeRequest(), out);
      parser.Reset();
      if (part.empty()) break;
    }
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string whole = Read(bytes, bytes.size() + 1);
  PENSTOCK_CHECK(Read(bytes, 1 + data[0] % 7) == whole);
  return 0;
}
