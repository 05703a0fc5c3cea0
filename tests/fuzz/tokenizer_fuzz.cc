// "tokenizer.json \0 text": whatever loads must encode without harm, to known ids, and decode to
// valid UTF-8.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/tokenizer.h"

namespace penstock {
namespace {

constexpr size_t kMaxTextBytes = 1024;

void Run(std::string_view file, std::string_view text) {
  const auto tokenizer = Tokenizer::Parse(file, "");
  if (!tokenizer.ok()) return;
  for (const bool special : {false, true}) {
    const auto ids = (*tokenizer)
                         ->Encode(text.substr(0, kMaxTextBytes),
                                  {.add_special_tokens = special, .parse_special_tokens = special});
    if (!ids.ok()) continue;
    for (uint32_t id : *ids) PENSTOCK_CHECK_LT(id, (*tokenizer)->vocab_size());
    const std::string decoded = (*tokenizer)->Decode(*ids, special);
    PENSTOCK_CHECK(FirstInvalidUtf8(decoded) == std::string_view::npos);
  }
  // Bytes as ids: sequences that no text encodes to.
  Detokenizer detokenizer(**tokenizer);
  for (char c : text.substr(0, kMaxTextBytes)) {
    const std::string piece = detokenizer.Feed(static_cast<uint8_t>(c));
    PENSTOCK_CHECK(FirstInvalidUtf8(piece) == std::string_view::npos);
  }
  detokenizer.Flush();
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const bool has_text = zero != std::string_view::npos;
  penstock::Run(input.substr(0, zero), has_text ? input.substr(zero + 1) : "Hello 12 \xC3\xA9");
  return 0;
}
