#include "router/openai/sampling_fields.h"

#include <array>
#include <charconv>

#include "router/api/cache_control.h"
#include "router/request/answer_spec.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr int64_t kMaxTokens = kMostMaxTokens;
constexpr size_t kMaxListed =
    4096;  // first bound of lists other than prompts; ValidateAnswer has the limits
constexpr size_t kMaxLogitBias = 4096;
constexpr size_t kMaxSaltBytes = 128;

void ReadSampling(FieldReader& reader, v1::SamplingParams& sampling) {
  if (const auto value = reader.Number("temperature")) {
    sampling.set_temperature(static_cast<float>(*value));
  }
  if (const auto value = reader.Number("top_p")) sampling.set_top_p(static_cast<float>(*value));
  if (const auto value = reader.Number("min_p")) sampling.set_min_p(static_cast<float>(*value));
  // vLLM's value for "off" is -1, inference.proto's is 0.
  if (const auto value = reader.Integer("top_k", -1, kMaxTokens)) {
    sampling.set_top_k(static_cast<uint32_t>(std::max<int64_t>(*value, 0)));
  }
  if (const auto value = reader.Number("frequency_penalty")) {
    sampling.set_frequency_penalty(static_cast<float>(*value));
  }
  if (const auto value = reader.Number("presence_penalty")) {
    sampling.set_presence_penalty(static_cast<float>(*value));
  }
  if (const auto value = reader.Number("repetition_penalty")) {
    sampling.set_repetition_penalty(static_cast<float>(*value));
  }
  if (const auto value = reader.Integer("seed", INT64_MIN, INT64_MAX)) sampling.set_seed(*value);
  if (const auto value = reader.Integer("n", 1, kMaxChoices)) {
    sampling.set_n(static_cast<uint32_t>(*value));
  }
}

void ReadLogitBias(FieldReader& reader, v1::SamplingParams& sampling) {
  const Json* biases = reader.Object("logit_bias");
  if (biases == nullptr) return;
  if (biases->size() > kMaxLogitBias) {
    return reader.Note(BadField("logit_bias", "has {} entries; the limit is 1024", biases->size()));
  }
  for (const auto& [key, bias] : biases->items()) {
    uint32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return reader.Note(
          BadField("logit_bias", "has the key `{}`, which is no token id", ShownText(key)));
    }
    if (!bias.is_number()) {
      return reader.Note(
          BadField(fmt::format("logit_bias.{}", id), "must be a number, not {}", KindOf(bias)));
    }
    (*sampling.mutable_logit_bias())[id] = bias.get<float>();
  }
}

void ReadStopStrings(FieldReader& reader, v1::StopConditions& stop) {
  const Json* value = reader.Any("stop");
  if (value == nullptr) return;
  if (value->is_string()) return stop.add_stop(value->get<std::string>());
  if (!value->is_array() || value->size() > kMaxListed) {
    return reader.Note(BadField("stop", "must be a string or a list of at most 16 strings"));
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& text = (*value)[i];
    if (!text.is_string()) {
      return reader.Note(
          BadField(fmt::format("stop[{}]", i), "must be a string, not {}", KindOf(text)));
    }
    stop.add_stop(text.get<std::string>());
  }
}

void ReadStop(FieldReader& reader, v1::StopConditions& stop) {
  ReadStopStrings(reader, stop);
  if (const auto value = reader.Integer("min_tokens", 0, kMaxTokens)) {
    stop.set_min_tokens(static_cast<uint32_t>(*value));
  }
  if (const auto value = reader.Bool("ignore_eos")) stop.set_ignore_eos(*value);
  if (const auto value = reader.Bool("include_stop_str_in_output")) {
    stop.set_include_stop_in_output(*value);
  }
  const Json* ids = reader.Array("stop_token_ids");
  if (ids == nullptr) return;
  if (ids->size() > kMaxListed) {
    return reader.Note(BadField("stop_token_ids", "has {} entries; the limit is 64", ids->size()));
  }
  for (size_t i = 0; i < ids->size(); ++i) {
    const auto id = IntegerOf(fmt::format("stop_token_ids[{}]", i), (*ids)[i], 0, UINT32_MAX);
    if (!id.ok()) return reader.Note(id.status());
    stop.add_stop_token_ids(static_cast<uint32_t>(*id));
  }
}

void ReadMaxTokens(FieldReader& reader, v1::StopConditions& stop) {
  auto max = reader.Integer("max_completion_tokens", 1, kMaxTokens);
  const auto older = reader.Integer("max_tokens", 0, kMaxTokens);
  if (!max) max = older;
  if (max) stop.set_max_tokens(static_cast<uint32_t>(*max));
}

void ReadStream(FieldReader& reader, OpenAiRequest& request) {
  request.stream = reader.Bool("stream").value_or(false);
  const Json* options = reader.Object("stream_options");
  if (options == nullptr) return;
  if (!request.stream) {
    return reader.Note(BadField("stream_options", "may only be set with \"stream\": true"));
  }
  FieldReader inner(*options, "stream_options.");
  request.include_usage = inner.Bool("include_usage").value_or(false);
  request.continuous_usage = inner.Bool("continuous_usage_stats").value_or(false);
  if (!inner.status().ok()) reader.Note(inner.status());
}

void ReadKvPolicy(FieldReader& reader, v1::GenerateRequest& generate) {
  const std::string* policy = reader.String("kv_policy");
  if (policy == nullptr) return;
  if (policy->empty())
    return reader.Note(BadField("kv_policy", "is empty; \"exact\" is the least"));
  generate.set_kv_policy(*policy);
}

// A string that marks something in the prompt; null: there is none.
const std::string* ReadMarker(FieldReader& reader, const char* field) {
  const std::string* marker = reader.String(field);
  if (marker == nullptr || !marker->empty()) return marker;
  reader.Note(BadField(field, "is empty; it must have 1 to 64 bytes"));
  return nullptr;
}

// Positions of tokens in the prompt.
void ReadPositions(FieldReader& reader, const char* field,
                   google::protobuf::RepeatedField<uint32_t>& positions) {
  const Json* array = reader.Array(field);
  if (array == nullptr) return;
  for (size_t i = 0; i < array->size(); ++i) {
    const auto position = IntegerOf(fmt::format("{}[{}]", field, i), (*array)[i], 0, UINT32_MAX);
    if (!position.ok()) return reader.Note(position.status());
    positions.Add(static_cast<uint32_t>(*position));
  }
}

void ReadMarks(FieldReader& reader, v1::GenerateRequest& generate) {
  const std::string* separator = ReadMarker(reader, "blend_separator");
  if (separator != nullptr) generate.set_blend_separator(*separator);
  ReadPositions(reader, "blend_parts", *generate.mutable_blend_parts());
  const std::string* marker = ReadMarker(reader, "keep_marker");
  if (marker != nullptr) generate.set_keep_marker(*marker);
  ReadPositions(reader, "keep_spans", *generate.mutable_keep_spans());
}

void ReadCache(FieldReader& reader, v1::CacheControl& cache) {
  if (const std::string* key = reader.String("prompt_cache_key")) {
    if (key->size() > kMaxSaltBytes) {
      return reader.Note(BadField("prompt_cache_key", "has {} bytes; the limit is {}", key->size(),
                                  kMaxSaltBytes));
    }
    cache.set_affinity_key(*key);
  }
  const std::string* salt = reader.String("cache_salt");
  if (salt == nullptr) return;
  if (salt->empty() || salt->size() > kMaxSaltBytes) {
    return reader.Note(
        BadField("cache_salt", "has {} bytes; it must have 1 to {}", salt->size(), kMaxSaltBytes));
  }
  cache.set_salt(*salt);
}

}  // namespace

void ReadSharedFields(FieldReader& reader, v1::GenerateRequest& generate) {
  if (const std::string* model = reader.String("model")) generate.set_model(*model);
  ReadSampling(reader, *generate.mutable_sampling());
  ReadLogitBias(reader, *generate.mutable_sampling());
  ReadStop(reader, *generate.mutable_stop());
  ReadKvPolicy(reader, generate);
  ReadMarks(reader, generate);
  ReadCache(reader, *generate.mutable_cache());
  if (const Json* control = reader.Any("cache_control")) {
    absl::Status read =
        ReadCacheControl("cache_control", *control, *generate.mutable_cache()->mutable_prompt());
    if (!read.ok()) reader.Note(std::move(read));
  }
  if (const auto value = reader.Bool("skip_special_tokens")) {
    generate.mutable_output()->set_skip_special_tokens(*value);
  }
}

void ReadCompletionOptions(FieldReader& reader, OpenAiRequest& request,
                           v1::GenerateRequest& generate) {
  ReadMaxTokens(reader, *generate.mutable_stop());
  ReadStream(reader, request);
  request.return_token_ids = reader.Bool("return_token_ids").value_or(false);
  // Continuous usage counts the token ids.
  generate.mutable_output()->set_return_token_ids(request.return_token_ids ||
                                                  request.continuous_usage);
}

}  // namespace penstock
