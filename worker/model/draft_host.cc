#include "worker/model/draft_host.h"

#include "model/tokenizer/tokenizer.h"

namespace penstock {
namespace {

absl::Status CheckToken(const Tokenizer& draft, const Tokenizer& target, uint32_t id,
                        const std::string& name) {
  const std::string_view ours = draft.TokenBytes(id), theirs = target.TokenBytes(id);
  if (ours == theirs && draft.is_special(id) == target.is_special(id)) return absl::OkStatus();
  return InvalidArgument(
      "draft_model is {}, whose token {} is {}'{}', and model's is {}'{}'; use a draft model with "
      "the tokenizer of model",
      name, id, draft.is_special(id) ? "the special " : "", ours,
      target.is_special(id) ? "the special " : "", theirs);
}

// Guesses are token ids, so both models must mean the same tokens by them.
absl::Status CheckTokenizers(const std::string& draft, const std::string& target) {
  ASSIGN_OR_RETURN(const auto ours, Tokenizer::Load(draft));
  ASSIGN_OR_RETURN(const auto theirs, Tokenizer::Load(target));
  if (ours->vocab_size() != theirs->vocab_size()) {
    return InvalidArgument(
        "draft_model is {}, whose tokenizer has {} tokens, and model's has {}; use a draft model "
        "with the tokenizer of model",
        draft, ours->vocab_size(), theirs->vocab_size());
  }
  for (uint32_t id = 0; id < ours->vocab_size(); ++id) {
    RETURN_IF_ERROR(CheckToken(*ours, *theirs, id, draft));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDraftModel(const ModelHost::Options& draft, const ModelHost::Options& target) {
  return CheckTokenizers(draft.model, target.model);
}

absl::StatusOr<std::unique_ptr<ModelHost>> OpenDraftHost(const ModelHost::Options& draft,
                                                         ThreadPool* threads) {
  ModelHost::Options shared = draft;
  shared.shared_threads = threads;
  auto host = ModelHost::Open(shared);
  if (!host.ok()) return Annotate(host.status(), fmt::format("draft_model {}", draft.model));
  return host;
}

}  // namespace penstock
