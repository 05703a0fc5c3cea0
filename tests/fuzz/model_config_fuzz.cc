#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/checkpoint/model_config.h"

// config.json, and after a NUL generation_config.json. What is accepted must be within the limits
// that allocations and kernels rely on.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  const auto generation = split == std::string_view::npos ? "" : input.substr(split + 1);
  const auto config = penstock::ParseModelConfig(input.substr(0, split), generation);
  if (!config.ok()) return 0;
  PENSTOCK_CHECK(config->layers >= 1 && config->layers <= 1024);
  PENSTOCK_CHECK(config->hidden >= 1 && config->hidden <= 65536);
  PENSTOCK_CHECK(config->vocab >= 1 && config->vocab <= 1 << 21);
  PENSTOCK_CHECK(config->max_position >= 1 && config->max_position <= 1 << 24);
  PENSTOCK_CHECK_EQ(config->heads % config->kv_heads, 0);
  const int32_t head_dim_max = config->HasLatents() ? 1024 + 512 : 256;
  PENSTOCK_CHECK(config->head_dim >= 8 && config->head_dim <= head_dim_max &&
                 config->head_dim % 8 == 0);
  PENSTOCK_CHECK(!config->HasLatents() || (config->heads <= 128 && config->latent.rank <= 1024));
  PENSTOCK_CHECK_EQ(static_cast<int32_t>(config->sliding_window.size()), config->layers);
  PENSTOCK_CHECK(config->rope.factor >= 1 && config->rope.original_max_position >= 1);
  PENSTOCK_CHECK(config->rope.RotaryDims(config->head_dim) % 2 == 0 &&
                 config->rope.RotaryDims(config->head_dim) <= config->head_dim);
  const auto pairs = static_cast<size_t>(config->rope.RotaryDims(config->head_dim) / 2);
  PENSTOCK_CHECK(config->rope.scaling != penstock::RopeScaling::kLongRope ||
                 config->rope.divisors.size() == pairs);
  for (int32_t layer = 0; layer < config->layers; ++layer) {
    config->RopeOf(layer);
    config->HasExperts(layer);
  }
  PENSTOCK_CHECK(config->experts.count <= 1024 && config->experts.per_token <= 64);
  PENSTOCK_CHECK(config->experts.per_token <= config->experts.count);
  PENSTOCK_CHECK_EQ(config->experts.count % config->experts.groups, 0);
  PENSTOCK_CHECK(config->experts.per_token <=
                 config->experts.count / config->experts.groups * config->experts.kept_groups);
  PENSTOCK_CHECK(config->quantisation.group_size >= 0 &&
                 config->quantisation.group_size <= 1 << 20);
  for (const uint32_t id : config->eos_token_ids) {
    PENSTOCK_CHECK(id < static_cast<uint32_t>(config->vocab));
  }
  return 0;
}
