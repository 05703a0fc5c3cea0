#include "router/embeddings/embedding_writer.h"

#include <absl/strings/escaping.h>

#include <bit>
#include <span>

#include "base/check.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little, "base64 has little-endian numbers");

void AppendNumbers(std::span<const float> values, std::string& out) {
  out += '[';
  for (const float value : values) {
    if (out.back() != '[') out += ',';
    AppendJsonNumber(value, out);
  }
  out += ']';
}

void AppendBase64(std::span<const float> values, std::string& out) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  out += fmt::format("\"{}\"", std::string(absl::Base64Escape({bytes.data(), bytes.size()})));
}

}  // namespace

void EmbeddingWriter::AppendChunk(const v1::Chunk&, std::string&) {
  PENSTOCK_CHECK(!"embeddings are not streamed");
}
void EmbeddingWriter::AppendFinal(const v1::Final&, std::string&) {
  PENSTOCK_CHECK(!"embeddings are not streamed");
}
void EmbeddingWriter::AppendEnd(const v1::Usage&, std::string&) {
  PENSTOCK_CHECK(!"embeddings are not streamed");
}
void EmbeddingWriter::AppendError(const absl::Status&, std::string&) {
  PENSTOCK_CHECK(!"embeddings are not streamed");
}

std::string EmbeddingWriter::Whole(const v1::GenerateUnaryResponse& answer) {
  std::string out = R"({"object":"list","data":[)";
  for (int i = 0; i < answer.choices_size(); ++i) {
    if (i > 0) out += ',';
    out += fmt::format(R"({{"object":"embedding","index":{},"embedding":)", i);
    const auto& embedding = answer.choices(i).embedding();
    const std::span<const float> values(embedding.data(), static_cast<size_t>(embedding.size()));
    encoding_ == EmbeddingEncoding::kBase64 ? AppendBase64(values, out)
                                            : AppendNumbers(values, out);
    out += '}';
  }
  out += R"(],"model":)";
  AppendJsonString(model_, out);
  const v1::Usage& usage = answer.usage();
  out += fmt::format(R"(,"usage":{{"prompt_tokens":{0},"total_tokens":{0})", usage.prompt_tokens());
  out +=
      fmt::format(R"(,"prompt_tokens_details":{{"cached_tokens":{}}}}}}})", usage.cached_tokens());
  return out;
}

}  // namespace penstock
