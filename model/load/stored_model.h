#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/load/tensor_hashes.h"
#include "model/weights/weight_policy.h"
#include "model/weights/weights.h"

namespace penstock {

// A checkpoint whose 16-bit matrices stay in its mapped files (StoreWeights), for GPUs, which copy
// them from there. Quantised and rounded matrices, norms and biases are in memory. Immutable: any
// thread may read the weights.
class StoredModel {
 public:
  struct Options {
    WeightPolicy policy = WeightPolicy::kCheckpoint;
    bool use_mtp = false;    // as LoadOptions
    bool key_means = false;  // loads the means of keys, too, as LoadOptions
    int threads = 1;
  };
  // Checks the files as LoadModel does, and starts Options::threads threads that hash them, which
  // also reads them from disk. Errors are those of LoadModel.
  static absl::StatusOr<std::unique_ptr<StoredModel>> Open(const std::string& directory,
                                                           const Options& options);
  ~StoredModel();
  StoredModel(const StoredModel&) = delete;
  StoredModel& operator=(const StoredModel&) = delete;

  const Weights& weights() const { return weights_; }
  // LoadedModel::fingerprint of the same checkpoint. Waits for the threads; one thread calls it.
  uint64_t Fingerprint();

 private:
  StoredModel(Checkpoint checkpoint, int threads)
      : checkpoint_(std::move(checkpoint)), threads_(threads) {}

  const Checkpoint checkpoint_;
  const int threads_;
  Weights weights_;
  std::vector<NamedBytes> used_;
  std::unique_ptr<TensorHashes> hashes_;
  std::optional<uint64_t> means_hash_;  // of the means of keys, if loaded
};

}  // namespace penstock
