#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"
#include "kvstore/names/kv_policy.h"
#include "proto/worker.pb.h"

namespace penstock {

// Whether a worker blends prompts, or takes blended ones, for requests that ask for it. Immutable;
// any thread.
class KvBlends {
 public:
  // What a worker has for blends.
  struct Ability {
    bool runner = false;       // ModelRunner::key_rotations()
    uint32_t step_tokens = 0;  // of a prompt in one step
    bool cache = false;        // KvCacheManager::keeps_blocks()
  };

  // `deviation_max` is the flag kv_blend_deviation; 0: no request may blend. INVALID_ARGUMENT or
  // FAILED_PRECONDITION name the flag and what stands in the way.
  static absl::StatusOr<KvBlends> Open(double deviation_max, const Ability& ability);

  // The blend of a request under `policy`; nullopt if it has none. INVALID_ARGUMENT for an unknown
  // policy. FAILED_PRECONDITION if this worker does not do it: other workers may.
  absl::StatusOr<std::optional<KvBlend>> Take(std::string_view policy) const;
  bool any() const { return deviation_max_ > 0; }
  // A part whose deviation is greater is computed in full.
  float deviation_max() const { return deviation_max_; }
  // Tells routers of it in the state that they watch.
  void Describe(v1::WorkerState* state) const { state->set_kv_blends(any()); }

 private:
  float deviation_max_ = 0;
};

}  // namespace penstock
