#include "model/load/stored_model.h"

#include "base/mapped_file.h"
#include "kernels/cpu/thread_pool.h"
#include "model/load/checkpoint_source.h"
#include "model/load/load_model.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<StoredModel>> StoredModel::Open(const std::string& directory,
                                                               WeightPolicy policy, int threads) {
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  std::unique_ptr<StoredModel> model(new StoredModel(std::move(checkpoint), threads));
  const CheckpointSource source(model->checkpoint_);
  auto weights = StoreWeights(model->checkpoint_.config(), source, FormsOf(policy));
  if (!weights.ok()) return Annotate(weights.status(), directory);
  model->weights_ = *std::move(weights);
  RETURN_IF_ERROR(source.CheckAllUsed(model->checkpoint_.config()));
  model->used_ = source.used();
  model->hashes_ = std::make_unique<TensorHashes>(model->used_, threads);
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
  return FingerprintOf(weights_, ModelFingerprint(checkpoint_, hashes_->Sum()));
}

}  // namespace penstock
