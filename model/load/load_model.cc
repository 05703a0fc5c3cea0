#include "model/load/load_model.h"

#include <xxhash.h>

#include <functional>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/mapped_file.h"
#include "model/checkpoint/key_means.h"
#include "model/load/checkpoint_source.h"
#include "model/load/packed_directory.h"
#include "model/packed/packed_filler.h"
#include "model/packed/packed_weights_file.h"
#include "model/weights/weight_filler.h"

namespace penstock {

namespace {

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
  model.fingerprint = FingerprintWithMeans(model.fingerprint, means.Hash());
  model.weights.SetKeyMeans(std::move(means));
  return absl::OkStatus();
}

// A model whose files are open.
struct OpenModel {
  const std::string& path;  // as it was given
  const Checkpoint& checkpoint;
  const ModelConfig& config;
};

// Gives a model's weights, from a filler.
using Fill = std::function<absl::StatusOr<Weights>(Filler&)>;

// Packs the weights of a checkpoint, whose pages are released tensor by tensor.
absl::StatusOr<LoadedModel> PackModel(const OpenModel& open, const LoadOptions& options,
                                      const Fill& fill) {
  std::span<const std::byte> current;  // the tensor that is being packed
  uint64_t hash = 0;
  // Hashing reads the pages from disk, so the packing that follows finds them in memory.
  const CheckpointSource source(open.checkpoint, [&](const NamedBytes& tensor, bool first) {
    ReleasePages(current);
    current = tensor.bytes;
    if (first) hash += HashOf(tensor);
  });
  const std::unique_ptr<Filler> filler =
      MakeCheckpointFiller(open.config, source, FormsOf(options.policy), options.threads);
  absl::StatusOr<Weights> weights = fill(*filler);
  if (!weights.ok()) return Annotate(weights.status(), open.path);
  RETURN_IF_ERROR(source.CheckAllUsed(open.config));
  const uint64_t fingerprint = FingerprintOf(*weights, ModelFingerprint(open.checkpoint, hash));
  return LoadedModel{*std::move(weights), fingerprint};
}

absl::Status WritePacked(const std::string& path, const OpenModel& open,
                         const LoadOptions& options) {
  ASSIGN_OR_RETURN(const auto writer, PackedWeightsWriter::Create(path));
  v1::PackedWeights contents;
  const auto fill = [&](Filler& filler) {
    PackingFiller packing(filler, *writer, contents);
    return BuildWeights(open.config, packing);
  };
  ASSIGN_OR_RETURN(const LoadedModel model, PackModel(open, options, fill));
  contents.set_fingerprint(model.fingerprint);
  return writer->Finish(contents);
}

// The model over the file of packed weights, which is written if there is none.
absl::StatusOr<LoadedModel> SharePacked(const OpenModel& open, const LoadOptions& options) {
  ASSIGN_OR_RETURN(const auto lock, PackedDirectoryLock::Take(options.packed_directory));
  ASSIGN_OR_RETURN(const std::string name,
                   PackedNameOf(open.checkpoint, open.config, options.policy));
  const std::string path = options.packed_directory + "/" + name;
  auto file = PackedWeightsFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    RETURN_IF_ERROR(WritePacked(path, open, options));
    file = PackedWeightsFile::Open(path);
  }
  RETURN_IF_ERROR(file.status());
  PackedFiller filler(**file);
  ASSIGN_OR_RETURN(Weights weights, BuildWeights(open.config, filler));
  const uint64_t fingerprint = (*file)->contents().fingerprint();
  weights.shared_memory = *std::move(file);
  return LoadedModel{std::move(weights), fingerprint};
}

absl::StatusOr<LoadedModel> PackOrShare(const OpenModel& open, const LoadOptions& options) {
  if (!options.packed_directory.empty() && options.expert_cache) {
    return InvalidArgument(
        "packed_weights_dir is {}, and expert_memory {}; experts on a disk are not shared: leave "
        "one of them out",
        options.packed_directory, FormatBytes(options.expert_cache->bytes));
  }
  if (!options.packed_directory.empty()) return SharePacked(open, options);
  ASSIGN_OR_RETURN(auto experts, OpenExperts(open.path, open.config, options.expert_cache));
  return PackModel(open, options, [&](Filler& filler) {
    return BuildWeights(open.config, filler, std::move(experts));
  });
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& directory, const LoadOptions& options) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
  ModelConfig config = checkpoint.config();
  config.use_mtp = options.use_mtp;
  if (options.use_mtp) RETURN_IF_ERROR(CheckMtp(directory, config));
  ASSIGN_OR_RETURN(
      LoadedModel model,
      PackOrShare({.path = directory, .checkpoint = checkpoint, .config = config}, options));
  if (options.key_means) RETURN_IF_ERROR(AddKeyMeans(directory, model));
  return model;
}

absl::Status CheckMtp(const std::string& directory, const ModelConfig& config) {
  if (config.mtp_layers > 0) return absl::OkStatus();
  return FailedPrecondition(
      "{} is a {} without a layer for multi-token prediction (num_nextn_predict_layers is 0 or "
      "absent), so speculation=mtp is not possible; use ngram, draft_model or off",
      directory, config.architecture);
}

uint64_t ModelFingerprint(const Checkpoint& checkpoint, uint64_t hashes) {
  const uint64_t parts[] = {checkpoint.layout_fingerprint(), hashes};
  return XXH3_64bits(parts, sizeof(parts));
}

uint64_t FingerprintWithMeans(uint64_t fingerprint, uint64_t means) {
  const uint64_t parts[] = {fingerprint, means};
  return XXH3_64bits(parts, sizeof(parts));
}

uint64_t FingerprintOf(const Weights& weights, uint64_t checkpoint) {
  if (!weights.quantised()) return checkpoint;
  const std::string form = weights.FormName();
  return XXH3_64bits_withSeed(form.data(), form.size(), checkpoint);
}

}  // namespace penstock
