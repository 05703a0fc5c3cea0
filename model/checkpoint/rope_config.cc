#include "model/checkpoint/rope_config.h"

#include <algorithm>
#include <cmath>

#include "model/checkpoint/config_limits.h"
#include "model/checkpoint/json_fields.h"

namespace penstock {
namespace {

constexpr double kMaxRopeFactor = 1e4;

// YaRN's attention scaling (Peng et al., arXiv 2309.00071, section 3.4) for an extension by
// `factor`.
double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnAttentionFactor(JsonFields& fields, double factor) {
  if (fields.Has("attention_factor")) return fields.Float("attention_factor", 1e-3, 1e3);
  const double mscale = fields.Float("mscale", 0, 1e3, 0);
  const double mscale_all = fields.Float("mscale_all_dim", 0, 1e3, 0);
  if (mscale == 0 || mscale_all == 0) return YarnScale(factor, 1);
  return YarnScale(factor, mscale) / YarnScale(factor, mscale_all);
}

void ReadYarn(JsonFields& fields, RopeConfig* rope) {
  rope->scaling = RopeScaling::kYarn;
  rope->beta_fast = static_cast<float>(fields.Float("beta_fast", 1e-3, 1e4, 32));
  rope->beta_slow = static_cast<float>(fields.Float("beta_slow", 1e-3, 1e4, 1));
  rope->attention_factor = static_cast<float>(YarnAttentionFactor(fields, rope->factor));
  rope->truncate = fields.Bool("truncate", true);
  const double mscale_all = fields.Float("mscale_all_dim", 0, 1e3, 0);
  const double score_scale = mscale_all == 0 ? 1 : YarnScale(rope->factor, mscale_all);
  rope->score_factor = static_cast<float>(score_scale * score_scale);
  if (rope->beta_slow >= rope->beta_fast) fields.Fail("beta_slow", "less than beta_fast");
  // Early files of Phi-3 call longrope yarn.
  if (fields.Has("short_factor")) fields.Fail("short_factor", "absent with yarn");
}

void ReadLlama3(JsonFields& fields, RopeConfig* rope) {
  rope->scaling = RopeScaling::kLlama3;
  rope->low_freq_factor = static_cast<float>(fields.Float("low_freq_factor", 1e-3, 1e4));
  rope->high_freq_factor = static_cast<float>(fields.Float("high_freq_factor", 1e-3, 1e4));
  if (rope->low_freq_factor >= rope->high_freq_factor) {
    fields.Fail("low_freq_factor", "less than high_freq_factor");
  }
}

// LongRoPE (Ding et al., arXiv 2402.13753) has divisors for prompts within the trained context and
// others for longer ones. Keys that were cached under the first do not fit queries under the
// second, so a model uses one list: the long one if it can go beyond the trained context.
void ReadLongRope(JsonFields& fields, const RopeContext& context, RopeConfig* rope) {
  rope->scaling = RopeScaling::kLongRope;
  rope->original_max_position =
      static_cast<int32_t>(context.original_max_position > 0
                               ? context.original_max_position
                               : fields.Int("original_max_position_embeddings", 2, kMaxPosition));
  const double original = std::max(2, rope->original_max_position);
  const double factor = static_cast<double>(context.max_position) / original;
  rope->factor = static_cast<float>(std::max(1.0, factor));
  const double scale = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original));
  rope->attention_factor = static_cast<float>(fields.Float("attention_factor", 1e-3, 1e3, scale));
  const auto pairs = static_cast<size_t>(rope->RotaryDims(context.head_dim) / 2);
  for (const std::string key : {"short_factor", "long_factor"}) {
    const std::vector<double> divisors = fields.Floats(key, 1e-3, kMaxRopeFactor, pairs);
    if (divisors.size() != pairs) fields.Fail(key, fmt::format("a list of {} numbers", pairs));
    if ((key == "long_factor") == (factor > 1)) {
      rope->divisors.assign(divisors.begin(), divisors.end());
    }
  }
}

std::string RopeType(JsonFields& fields) {
  const std::string key = fields.Has("rope_type") ? "rope_type" : "type";
  // Newer files write {"rope_theta": ...} alone if there is no scaling.
  if (!fields.Has(key) && fields.Has("factor")) fields.Fail("rope_type", "a string");
  const std::string type =
      fields.Choice(key, {"default", "linear", "llama3", "yarn", "longrope", "su"}, "default");
  return type == "su" ? "longrope" : type;  // the name in Phi-3's first files
}

void ReadScaling(JsonFields& fields, const std::string& type, RopeConfig* rope) {
  rope->factor = static_cast<float>(fields.Float("factor", 1, kMaxRopeFactor));
  if (type == "linear") rope->scaling = RopeScaling::kLinear;
  if (type == "llama3") ReadLlama3(fields, rope);
  if (type == "yarn") ReadYarn(fields, rope);
  const auto original = type == "llama3" ? std::nullopt : std::optional<int64_t>(0);
  rope->original_max_position = static_cast<int32_t>(fields.Int(
      "original_max_position_embeddings", type == "llama3" ? 1 : 0, kMaxPosition, original));
}

}  // namespace

absl::Status SetRotaryDims(double factor, const RopeContext& context, const std::string& where,
                           RopeConfig* rope) {
  const auto dims = static_cast<int32_t>(context.head_dim * factor);
  if (factor == 1 || (context.partial && dims >= 2 && dims % 2 == 0)) {
    rope->rotary_dims = factor == 1 ? 0 : dims;
    return absl::OkStatus();
  }
  return InvalidArgument(
      "{}partial_rotary_factor is {}, allowed is {}", where, factor,
      context.partial ? fmt::format("an even number of head_dim's {} dimensions", context.head_dim)
                      : "1");
}

absl::StatusOr<RopeConfig> ParseRope(const nlohmann::json& dict, const std::string& where,
                                     const RopeContext& context, RopeConfig rope) {
  JsonFields fields(dict, where);
  for (const char* layer_type : {"full_attention", "sliding_attention"}) {
    if (fields.Has(layer_type)) fields.Fail(layer_type, "absent: one RoPE for all layers");
  }
  rope.theta = static_cast<float>(fields.Float("rope_theta", 1, kMaxTheta, rope.theta));
  if (fields.Has("partial_rotary_factor")) {
    const double factor = fields.Float("partial_rotary_factor", 0, 1);
    RETURN_IF_ERROR(SetRotaryDims(factor, context, where, &rope));
  }
  const std::string type = RopeType(fields);
  if (type == "longrope") {
    ReadLongRope(fields, context, &rope);
  } else if (type != "default") {
    ReadScaling(fields, type, &rope);
  }
  if (!fields.status().ok()) return fields.status();
  return rope;
}

}  // namespace penstock
