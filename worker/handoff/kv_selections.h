#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kvstore/names/kv_policy.h"
#include "proto/worker.pb.h"

namespace penstock {

// The methods by which the answers of a worker may select the KV that they attend to, for requests
// that ask for one. A prefill worker needs them too: behind a failure it computes what an answer
// had so far as it was decoded. Immutable; any thread.
class KvSelections {
 public:
  // `kv_selection` is the flag's value, see ParseKvSelections; `able` is
  // ModelRunner::selects_pages(). INVALID_ARGUMENT or FAILED_PRECONDITION name the flag and what
  // stands in the way.
  static absl::StatusOr<KvSelections> Open(const std::string& kv_selection, bool able);

  // The selection of a request under `policy`; nullopt if it has none. INVALID_ARGUMENT for an
  // unknown policy. FAILED_PRECONDITION if this worker does not do it: other workers may.
  absl::StatusOr<std::optional<KvSelection>> Take(std::string_view policy) const;
  // Sets the methods in the state that routers watch.
  void Describe(v1::WorkerState* state) const;

 private:
  std::vector<std::string> methods_;
};

}  // namespace penstock
