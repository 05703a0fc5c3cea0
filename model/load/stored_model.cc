#include "model/load/stored_model.h"

#include <utility>

#include "base/mapped_file.h"
#include "kernels/cpu/thread_pool.h"
#include "model/checkpoint/key_means.h"
#include "model/load/checkpoint_source.h"
#include "model/load/load_model.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<StoredModel>> StoredModel::Open(const std::string& directory,
                                                               const Options& options) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  std::unique_ptr<StoredModel> model(new StoredModel(std::move(checkpoint), options.threads));
  const CheckpointSource source(model->checkpoint_);
  ModelConfig config = model->checkpoint_.config();
  config.use_mtp = options.use_mtp;
  if (options.use_mtp) RETURN_IF_ERROR(CheckMtp(directory, config));
  auto weights = StoreWeights(config, source, FormsOf(options.policy));
  if (!weights.ok()) return Annotate(weights.status(), directory);
  model->weights_ = *std::move(weights);
  RETURN_IF_ERROR(source.CheckAllUsed(config));
  if (options.key_means) {
    ASSIGN_OR_RETURN(KeyMeans means, KeyMeans::Load(directory, config));
    model->means_hash_ = means.Hash();
    model->weights_.SetKeyMeans(std::move(means));
  }
  model->used_ = source.used();
  model->hashes_ = std::make_unique<TensorHashes>(model->used_, options.threads);
  return model;
}

// To unmap the pages of a large model takes a second, so the threads share it.
StoredModel::~StoredModel() {
  hashes_.reset();
  ThreadPool threads(threads_);
  threads.ParallelFor(static_cast<int64_t>(used_.size()),
                      [&](int64_t i, int) { ReleasePages(used_[static_cast<size_t>(i)].bytes); });
}

uint64_t StoredModel::Fingerprint() {
  const uint64_t plain = FingerprintOf(weights_, ModelFingerprint(checkpoint_, hashes_->Sum()));
  return means_hash_ ? FingerprintWithMeans(plain, *means_hash_) : plain;
}

}  // namespace penstock
