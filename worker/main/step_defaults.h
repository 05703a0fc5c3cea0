#pragma once

#include <cstdint>

namespace penstock {

// What a worker's steps hold unless its flags say otherwise.
struct StepDefaults {
  uint32_t chunk_tokens = 512;  // of a prompt
  uint32_t max_batch = 64;      // sequences that are decoded
};

// A GPU computes so many tokens in the time of a few: it waits for its memory until then.
constexpr StepDefaults StepDefaultsOn(bool gpus) {
  return gpus ? StepDefaults{.chunk_tokens = 2048, .max_batch = 256} : StepDefaults{};
}

}  // namespace penstock
