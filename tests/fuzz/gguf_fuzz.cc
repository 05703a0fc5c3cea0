// A GGUF file: what is accepted must lie within it, and the texts in place of config.json and
// tokenizer.json must be what their readers take, or be refused by them.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "model/checkpoint/model_config.h"
#include "model/gguf/file/gguf_file.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/gguf_tokenizer.h"
#include "model/tokenizer/tokenizer.h"

namespace penstock {
namespace {

void CheckTensors(const GgufFile& file, size_t size) {
  size_t total = 0;
  for (const GgufTensor& tensor : file.tensors) {
    PENSTOCK_CHECK_LT(tensor.begin, tensor.end);
    PENSTOCK_CHECK_LE(tensor.end, size);
    PENSTOCK_CHECK(tensor.begin >= file.data_begin);
    PENSTOCK_CHECK_EQ(tensor.shape.back() % tensor.type->block_elements, 0);
    total += tensor.bytes.size();
    if (const auto name = HuggingFaceName(tensor.name)) {
      PENSTOCK_CHECK(GgufName(*name) == tensor.name);
    }
  }
  PENSTOCK_CHECK_LE(total, size);
}

void CheckTexts(const GgufFile& file) {
  const auto config = GgufConfigJson(file);
  if (config.ok()) ParseModelConfig(*config, "").status().IgnoreError();
  const auto tokenizer = GgufTokenizerJson(file);
  const auto names = GgufTokenizerConfigJson(file);
  if (!tokenizer.ok() || !names.ok()) return;
  const auto parsed = Tokenizer::Parse(*tokenizer, *names);
  if (!parsed.ok()) return;
  const auto ids =
      (*parsed)->Encode("Hello 12 \xC3\xA9 <|im_end|>", {.parse_special_tokens = true});
  if (!ids.ok()) return;
  for (const uint32_t id : *ids) PENSTOCK_CHECK_LT(id, (*parsed)->vocab_size());
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto file = penstock::ParseGguf(bytes, "fuzz");
  if (!file.ok()) return 0;
  penstock::CheckTensors(*file, size);
  penstock::CheckTexts(*file);
  return 0;
}
