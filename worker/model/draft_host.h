#pragma once

#include <memory>

#include "worker/model/model_host.h"

namespace penstock {

// Opens the draft model of `target`, which `target_options` opened. It computes on the same
// threads. INVALID_ARGUMENT if its tokenizer has other tokens; FAILED_PRECONDITION on GPUs; and the
// errors of ModelHost::Open.
absl::StatusOr<std::unique_ptr<ModelHost>> OpenDraftHost(const ModelHost::Options& options,
                                                         const ModelHost::Options& target_options,
                                                         const ModelHost& target);

}  // namespace penstock
