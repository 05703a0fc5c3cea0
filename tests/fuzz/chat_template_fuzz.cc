// "template \0 messages as JSON": whatever parses must render or fail within its bounds, to valid
// UTF-8.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "model/template/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::ChatJson;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const auto parsed = penstock::ChatTemplate::Parse(input.substr(0, zero));
  if (!parsed.ok()) return 0;
  ChatJson messages = ChatJson::array({{{"role", "user"}, {"content", "h\xC3\xA9 [1] {x}\n"}}});
  if (zero != std::string_view::npos) {
    const std::string_view text = input.substr(zero + 1);
    ChatJson given = ChatJson::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
    if (!given.is_discarded()) messages = std::move(given);
  }
  const auto rendered = (*parsed)->Render({.messages = messages,
                                           .tools = messages,
                                           .bos_token = "<s>",
                                           .eos_token = "</s>",
                                           .extra = ChatJson::object({{"n", 3}, {"x", 0.5}})});
  if (rendered.ok()) {
    PENSTOCK_CHECK_LE(rendered->size(), penstock::ChatTemplate::kMaxOutputBytes);
    PENSTOCK_CHECK(penstock::FirstInvalidUtf8(*rendered) == std::string_view::npos);
  }
  return 0;
}
