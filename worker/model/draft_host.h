#pragma once

#include <memory>

#include "worker/model/model_host.h"

namespace penstock {

// Checks, before anything is loaded, that a model of `draft` can guess tokens for one of `target`.
// INVALID_ARGUMENT if its tokenizer has other tokens; and the errors of Tokenizer::Load.
absl::Status CheckDraftModel(const ModelHost::Options& draft, const ModelHost::Options& target);

// Opens the draft model, which computes on the target's `threads`; null on a GPU. Errors are those
// of ModelHost::Open.
absl::StatusOr<std::unique_ptr<ModelHost>> OpenDraftHost(const ModelHost::Options& draft,
                                                         ThreadPool* threads);

}  // namespace penstock
