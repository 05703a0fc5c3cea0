#include <cstring>
#include <string>
#include <vector>

#include "model/gguf/gguf_family.h"

namespace penstock {
namespace {

constexpr double kMaxAttentionFactor = 1e3;

// The divisors of the frequencies, in a tensor.
nlohmann::json Divisors(GgufDraft& draft, const GgufTensor& tensor, int64_t pairs) {
  if (tensor.type->name != "F32" || tensor.shape != std::vector<int64_t>{pairs}) {
    draft.fields.Refuse(tensor.name,
                        fmt::format("is a tensor of {} of shape [{}], allowed is F32 "
                                    "of shape [{}]",
                                    tensor.type->name, fmt::join(tensor.shape, ", "), pairs));
    return {};
  }
  nlohmann::json divisors = nlohmann::json::array();
  for (int64_t i = 0; i < pairs; i++) {
    float value = 0;
    std::memcpy(&value, tensor.bytes.data() + static_cast<size_t>(i) * sizeof(value),
                sizeof(value));
    divisors.push_back(value);
  }
  return divisors;
}

void WriteLongRope(GgufDraft& draft) {
  const GgufTensor* lengthy = draft.file.FindTensor("rope_factors_long.weight");
  const GgufTensor* brief = draft.file.FindTensor("rope_factors_short.weight");
  if (draft.json.contains("rope_scaling")) {
    draft.fields.Fail(draft.Key("rope.scaling.type"), "absent, or none");
  }
  const std::string key = draft.Key("rope.scaling.attn_factor");
  const double factor = draft.fields.Float(key, 1e-3, kMaxAttentionFactor, 1);
  if (lengthy == nullptr && brief == nullptr) {
    if (factor != 1) draft.fields.Fail(key, "1 without rope_factors_long.weight");
    return;
  }
  if (lengthy == nullptr || brief == nullptr) {
    draft.fields.Refuse(
        lengthy == nullptr ? "rope_factors_long.weight" : "rope_factors_short.weight",
        "is a tensor that is missing beside the other one");
    return;
  }
  const int64_t pairs = draft.Positive("rope.dimension_count") / 2;
  draft.json["original_max_position_embeddings"] =
      draft.Positive("rope.scaling.original_context_length");
  draft.json["rope_scaling"] = {{"rope_type", "longrope"},
                                {"long_factor", Divisors(draft, *lengthy, pairs)},
                                {"short_factor", Divisors(draft, *brief, pairs)}};
  if (draft.fields.Has(key)) draft.json["rope_scaling"]["attention_factor"] = factor;
}

}  // namespace

void WritePhi3(GgufDraft& draft) {
  const std::string window = draft.Key("attention.sliding_window");
  const int64_t tokens = draft.fields.Int(window, 0, GgufDraft::kMaxNumber);
  if (tokens != 0) draft.json["sliding_window"] = tokens;
  WriteLongRope(draft);
}

}  // namespace penstock
