#include "lab/fake/test_model.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "model/template/chat_template.h"

namespace penstock {
namespace {

// How GPT-2 writes a byte in its vocabulary: printable ones as themselves, others from U+0100 on.
std::string ByteSpelling(int byte) {
  const auto printable = [](int b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  };
  int code = byte;
  if (!printable(byte)) {
    code = 0x100;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

std::string TokenizerJson() {
  using Json = nlohmann::json;
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteSpelling(byte)] = byte;
  const auto added = [](uint32_t id, const std::string& content) {
    return Json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  const Json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", true}};
  return Json{{"version", "1.0"},
              {"added_tokens",
               Json::array({added(kTestImStart, "<|im_start|>"), added(kTestImEnd, "<|im_end|>")})},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level},
              {"post_processor", nullptr},
              {"decoder", byte_level},
              {"model", Json{{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}}
      .dump();
}

constexpr char kChatTemplate[] =
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' and loop.first %}"
    "{{ raise_exception('a tool message must follow an answer') }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

template <class T>
T Value(absl::StatusOr<T> value) {
  PENSTOCK_CHECK(value.ok(), "the test's model is broken");
  return *std::move(value);
}

}  // namespace

ServedModel MakeTestModel(uint32_t max_model_len) {
  return MakeTestModelWith(kChatTemplate, max_model_len);
}

ServedModel MakeTestModelWith(std::string_view chat_template, uint32_t max_model_len) {
  return MakeServedModel("test-model",
                         Value(Tokenizer::Parse(TokenizerJson(), R"({"eos_token": "<|im_end|>"})")),
                         Value(ChatTemplate::Parse(chat_template)), max_model_len);
}

}  // namespace penstock
