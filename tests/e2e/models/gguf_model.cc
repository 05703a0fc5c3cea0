#include "tests/e2e/models/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "kernels/bf16.h"
#include "kernels/f16.h"
#include "model/checkpoint/checkpoint.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/model_text.h"
#include "tests/model/gguf/gguf_writer.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr int64_t kBlock = 32;

void Append(std::string& bytes, const auto& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendQ80(const float* x, std::string& bytes) {
  float most = 0;
  for (int64_t i = 0; i < kBlock; ++i) most = std::max(most, std::abs(x[i]));
  const float scale = HalfToFloat(FloatToHalf(most / 127));
  Append(bytes, FloatToHalf(scale));
  for (int64_t i = 0; i < kBlock; ++i) {
    const float code = scale == 0 ? 0 : std::clamp(std::nearbyint(x[i] / scale), -127.0f, 127.0f);
    Append(bytes, static_cast<int8_t>(code));
  }
}

void AppendQ40(const float* x, std::string& bytes) {
  const float extreme =
      *std::max_element(x, x + kBlock, [](float a, float b) { return std::abs(a) < std::abs(b); });
  const float scale = HalfToFloat(FloatToHalf(extreme / -8));
  const auto code = [&](float value) {
    const float nearest = scale == 0 ? 0 : std::nearbyint(value / scale);
    return static_cast<unsigned>(std::clamp(nearest + 8, 0.0f, 15.0f));
  };
  Append(bytes, FloatToHalf(scale));
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    Append(bytes, static_cast<uint8_t>(code(x[i]) | code(x[kBlock / 2 + i]) << 4));
  }
}

std::vector<float> FloatsOf(const Checkpoint::Tensor& tensor) {
  PENSTOCK_CHECK(tensor.info->dtype == "BF16");
  std::vector<float> values(tensor.bytes.size() / sizeof(Bf16));
  for (size_t i = 0; i < values.size(); ++i) {
    Bf16 value;
    std::memcpy(&value, tensor.bytes.data() + i * sizeof(value), sizeof(value));
    values[i] = ToFloat(value);
  }
  return values;
}

// Rows of queries and keys become pairs, as llama.cpp's converter stores them.
std::vector<float> Interleaved(const std::vector<float>& rows, int64_t width, int64_t head) {
  std::vector<float> result(rows.size());
  for (int64_t r = 0; r < static_cast<int64_t>(rows.size()) / width; ++r) {
    const int64_t at = r % head, to = r - at + at % (head / 2) * 2 + at / (head / 2);
    std::copy_n(rows.begin() + r * width, width, result.begin() + to * width);
  }
  return result;
}

void AddTensor(const std::string& name, const Checkpoint::Tensor& tensor, int64_t head,
               GgufWriter& writer) {
  std::vector<float> values = FloatsOf(tensor);
  const std::vector<uint64_t> shape(tensor.info->shape.begin(), tensor.info->shape.end());
  std::string bytes;
  if (shape.size() == 1) {
    for (const float value : values) Append(bytes, value);
    writer.TensorData(name, FindGgmlType("F32")->id, shape, bytes);
    return;
  }
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (has("attn_q.") || has("attn_k.")) {
    values = Interleaved(values, static_cast<int64_t>(shape[1]), head);
  }
  const bool wide = has("attn_v.") || has("ffn_down.") || name == "output.weight";
  for (size_t i = 0; i < values.size(); i += kBlock) {
    (wide ? AppendQ80 : AppendQ40)(values.data() + i, bytes);
  }
  writer.TensorData(name, FindGgmlType(wide ? "Q8_0" : "Q4_0")->id, shape, bytes);
}

void AddTokenizer(GgufWriter& writer) {
  const auto tokenizer = nlohmann::json::parse(*ReadModelText(ModelFolder(), "tokenizer.json"));
  std::vector<std::string> tokens(tokenizer["model"]["vocab"].size()), merges;
  std::vector<int32_t> types;
  const auto set = [&](size_t id, const std::string& token) {
    tokens.resize(std::max(tokens.size(), id + 1));
    tokens[id] = token;
  };
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) set(id, token);
  for (const auto& added : tokenizer["added_tokens"]) set(added["id"], added["content"]);
  types.resize(tokens.size(), 1);
  for (const auto& added : tokenizer["added_tokens"]) types[added["id"]] = 3;  // control
  for (const auto& merge : tokenizer["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  writer.Text("tokenizer.ggml.model", "gpt2")
      .Text("tokenizer.ggml.pre", "qwen2")
      .Texts("tokenizer.ggml.tokens", tokens)
      .I32s("tokenizer.ggml.token_type", types)
      .Texts("tokenizer.ggml.merges", merges)
      .U32("tokenizer.ggml.bos_token_id", 0)
      .U32("tokenizer.ggml.eos_token_id", 1)
      .U32("tokenizer.ggml.eot_token_id", 5)
      .Bool("tokenizer.ggml.add_bos_token", true);
  const auto config = nlohmann::json::parse(*ReadModelText(ModelFolder(), "tokenizer_config.json"));
  if (config.contains("chat_template")) {
    writer.Text("tokenizer.chat_template", config["chat_template"].get<std::string>());
  }
}

}  // namespace

std::string BundledModelAsGguf() {
  const auto checkpoint = Checkpoint::Open(ModelFolder());
  PENSTOCK_CHECK(checkpoint.ok());
  const ModelConfig& config = checkpoint->config();
  GgufWriter writer;
  writer.Text("general.architecture", "llama")
      .U32("llama.block_count", static_cast<uint32_t>(config.layers))
      .U32("llama.context_length", static_cast<uint32_t>(config.max_position))
      .U32("llama.embedding_length", static_cast<uint32_t>(config.hidden))
      .U32("llama.feed_forward_length", static_cast<uint32_t>(config.intermediate))
      .U32("llama.attention.head_count", static_cast<uint32_t>(config.heads))
      .U32("llama.attention.head_count_kv", static_cast<uint32_t>(config.kv_heads))
      .F32("llama.attention.layer_norm_rms_epsilon", config.norm_epsilon)
      .F32("llama.rope.freq_base", config.rope.theta);
  AddTokenizer(writer);
  for (const std::string_view name : checkpoint->tensor_names()) {
    AddTensor(*GgufName(name), *checkpoint->Find(std::string(name)), config.head_dim, writer);
  }
  return writer.Bytes();
}

}  // namespace penstock
