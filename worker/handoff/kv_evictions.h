#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kvstore/names/kv_policy.h"
#include "proto/worker.pb.h"

namespace penstock {

// The evictions that a worker does, or takes the results of, for requests that ask for one.
// Immutable; any thread.
class KvEvictions {
 public:
  // What a worker has for evictions.
  struct Ability {
    bool runner = false;       // ModelRunner::eviction_attention()
    uint32_t step_tokens = 0;  // of a prompt in one step
  };

  // `kv_eviction` is the flag's value, see ParseKvEvictions. INVALID_ARGUMENT or
  // FAILED_PRECONDITION name the flag and what stands in the way.
  static absl::StatusOr<KvEvictions> Open(const std::string& kv_eviction, const Ability& ability);

  // The eviction of a request under `policy` whose prompt has `prompt_tokens` tokens; nullopt if it
  // drops none of the first `tokens` tokens of prompt and answer. INVALID_ARGUMENT for an unknown
  // policy, and for spans behind the prompt. FAILED_PRECONDITION if this worker does not do it:
  // other workers may.
  absl::StatusOr<std::optional<KvEviction>> Take(std::string_view policy, uint32_t prompt_tokens,
                                                 uint32_t tokens) const;
  bool any() const { return !methods_.empty(); }
  // Sets the methods in the state that routers watch.
  void Describe(v1::WorkerState* state) const;

 private:
  std::vector<std::string> methods_;
};

}  // namespace penstock
