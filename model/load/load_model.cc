#include "model/load/load_model.h"

#include <xxhash.h>

#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/mapped_file.h"
#include "model/checkpoint/key_means.h"
#include "model/load/checkpoint_source.h"

namespace penstock {

namespace {

absl::Status CheckMtp(const std::string& directory, const ModelConfig& config) {
  if (config.mtp_layers > 0) return absl::OkStatus();
  return FailedPrecondition(
      "{} is a {} without a layer for multi-token prediction (num_nextn_predict_layers is 0 or "
      "absent), so speculation=mtp is not possible; use ngram, draft_model or off",
      directory, config.architecture);
}

absl::StatusOr<std::unique_ptr<ExpertCache>> OpenExperts(
    const std::string& directory, const ModelConfig& config,
    const std::optional<ExpertCache::Options>& options) {
  if (!options) return nullptr;
  if (config.experts.count > 0) return ExpertCache::Create(*options);
  return InvalidArgument(
      "expert_memory is {}, and {} is a {} without experts; leave expert_memory out",
      FormatBytes(options->bytes), directory, config.architecture);
}

absl::Status AddKeyMeans(const std::string& directory, LoadedModel& model) {
  ASSIGN_OR_RETURN(KeyMeans means, KeyMeans::Load(directory, model.weights.config));
  const uint64_t parts[] = {model.fingerprint, means.Hash()};
  model.fingerprint = XXH3_64bits(parts, sizeof(parts));
  model.weights.SetKeyMeans(std::move(means));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& directory, const LoadOptions& options) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
  ModelConfig config = checkpoint.config();
  config.use_mtp = options.use_mtp;
  if (options.use_mtp) RETURN_IF_ERROR(CheckMtp(directory, config));
  ASSIGN_OR_RETURN(auto experts, OpenExperts(directory, config, options.expert_cache));
  std::span<const std::byte> current;  // the tensor that is being packed
  uint64_t hash = 0;
  // Hashing reads the pages from disk, so the packing that follows finds them in memory.
  const CheckpointSource source(checkpoint, [&](const NamedBytes& tensor, bool first) {
    ReleasePages(current);
    current = tensor.bytes;
    if (first) hash += HashOf(tensor);
  });
  auto weights = LoadWeights(config, source, FormsOf(options.policy), std::move(experts));
  if (!weights.ok()) return Annotate(weights.status(), directory);
  RETURN_IF_ERROR(source.CheckAllUsed(config));
  LoadedModel model{*std::move(weights), 0};
  model.fingerprint = FingerprintOf(model.weights, ModelFingerprint(checkpoint, hash));
  if (options.key_means) RETURN_IF_ERROR(AddKeyMeans(directory, model));
  return model;
}

uint64_t ModelFingerprint(const Checkpoint& checkpoint, uint64_t hashes) {
  const uint64_t parts[] = {checkpoint.layout_fingerprint(), hashes};
  return XXH3_64bits(parts, sizeof(parts));
}

uint64_t FingerprintOf(const Weights& weights, uint64_t checkpoint) {
  if (!weights.quantised()) return checkpoint;
  const std::string form = weights.FormName();
  return XXH3_64bits_withSeed(form.data(), form.size(), checkpoint);
}

}  // namespace penstock
