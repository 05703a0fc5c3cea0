// "notation, reasoning, cut, text": the parts of a text do not depend on how it is cut, nothing of
// it is held back for long, and content and calls are in it.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/utf8.h"
#include "model/output/output_parser.h"

namespace penstock {
namespace {

// The pieces as one text, in which their kinds show and their borders do not.
std::string Joined(const std::vector<OutputPiece>& pieces) {
  std::string text;
  int last = -1;
  for (const OutputPiece& piece : pieces) {
    const int kind = static_cast<int>(piece.kind);
    PENSTOCK_CHECK(!piece.text.empty());
    if (kind != last || piece.kind == OutputPiece::Kind::kCall)
      text += "\x01" + std::to_string(kind);
    text += piece.text;
    last = kind;
  }
  return text;
}

std::string PartsOf(const OutputParts& parts, std::string_view text, size_t cut) {
  OutputParser parser(parts);
  std::vector<OutputPiece> pieces;
  const auto add = [&](std::vector<OutputPiece> more) {
    pieces.insert(pieces.end(), more.begin(), more.end());
  };
  while (!text.empty()) {
    size_t size = std::min(cut, text.size());
    while (size < text.size() && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) ++size;
    add(parser.Feed(text.substr(0, size)));
    text.remove_prefix(size);
  }
  add(parser.Flush());
  return Joined(pieces);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock;  // NOLINT(build/namespaces)
  if (size < 3) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 3, size - 3);
  if (FirstInvalidUtf8(text) != std::string_view::npos) return 0;
  const auto calls = CallNotations();
  const auto reasoning = ReasoningNotations();
  OutputParts parts{.calls = &calls[data[0] % calls.size()],
                    .tools = {{.name = "f", .texts = {"a"}}, {.name = "get_weather"}}};
  if (data[1] % 3 != 0) parts.reasoning = &reasoning[data[1] % reasoning.size()];
  parts.reasoning_begun = parts.reasoning != nullptr && data[1] % 2 == 0;
  const std::string whole = PartsOf(parts, text, text.size());
  PENSTOCK_CHECK(PartsOf(parts, text, 1) == whole);
  PENSTOCK_CHECK(PartsOf(parts, text, 1 + data[2] % 32) == whole);
  return 0;
}
