#include "router/embeddings/request.h"

#include "router/api/error_parts.h"
#include "router/api/http_fields.h"
#include "router/openai/prompt_field.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

// Fields of vLLM's and SGLang's requests that would change the embeddings.
constexpr const char* kRefused[] = {"embed_dtype",   "endianness", "instruction",
                                    "messages",      "normalize",  "truncate_prompt_tokens",
                                    "use_activation"};

EmbeddingEncoding ReadEncoding(FieldReader& reader) {
  const std::string* encoding = reader.String("encoding_format");
  if (encoding == nullptr || *encoding == "float") return EmbeddingEncoding::kFloat;
  if (*encoding != "base64") {
    reader.Note(BadField("encoding_format", "is \"{}\"; it must be \"float\" or \"base64\"",
                         ShownText(*encoding)));
  }
  return EmbeddingEncoding::kBase64;
}

void RefuseFields(FieldReader& reader) {
  for (const char* name : kRefused) {
    if (reader.Any(name) == nullptr) continue;
    reader.Note(UnsupportedField(name, "is not supported by /v1/embeddings"));
  }
  if (!reader.Bool("add_special_tokens").value_or(true)) {
    reader.Note(UnsupportedField("add_special_tokens",
                                 "may not be false: texts are encoded as the model was trained"));
  }
}

}  // namespace

absl::StatusOr<EmbeddingRequest> ParseEmbeddingRequest(const Json& body) {
  RETURN_IF_ERROR(NeedObject(body));
  FieldReader reader(body, "");
  v1::GenerateRequest shared;
  shared.mutable_stop()->set_max_tokens(0);
  v1::EmbeddingOptions& options = *shared.mutable_output()->mutable_embedding();
  if (const std::string* model = reader.String("model")) shared.set_model(*model);
  if (const auto dimensions = reader.Integer("dimensions", 1, INT32_MAX)) {
    options.set_dimensions(static_cast<uint32_t>(*dimensions));
  }
  if (const std::string* salt = reader.String("cache_salt")) {
    shared.mutable_cache()->set_salt(*salt);
  }
  EmbeddingRequest request{.prompts = {}, .encoding = ReadEncoding(reader)};
  RefuseFields(reader);
  RETURN_IF_ERROR(reader.status());
  ASSIGN_OR_RETURN(request.prompts, ReadPromptField(body, {.name = "input",
                                                           .max_prompts = kMaxEmbeddingInputs,
                                                           .shared = shared}));
  return request;
}

}  // namespace penstock
