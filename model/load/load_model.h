#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/experts/expert_cache.h"
#include "model/weights/weights.h"

namespace penstock {

// This room, model/load, reads the weights of a checkpoint: it packs them for the CPU, or leaves
// the matrices in the files for devices that take them from there (StoredModel). It may use base/,
// kernels/cpu, model/checkpoint, model/experts, model/packed and model/weights only. It does not
// know devices.
//
// A model in memory. Immutable after LoadModel; runners refer to its weights.
struct LoadedModel {
  Weights weights;  // with its config
  // XXH3-64 of config.json, of the files' names, sizes and headers, of every weight byte in use,
  // of the form of quantised weights (Weights::FormName), and of the means of keys, if loaded.
  // Workers with equal fingerprints run the same model; KV blocks of different models never share
  // an id.
  uint64_t fingerprint = 0;
};

struct LoadOptions {
  // May round the matrices of a 16-bit checkpoint; it is an error for a quantised one.
  WeightPolicy policy = WeightPolicy::kCheckpoint;
  // Loads the layer for multi-token prediction, too; FAILED_PRECONDITION if the model has none.
  bool use_mtp = false;
  // Keeps the experts in a file and a cache, which no moment of loading exceeds by more than one
  // expert; INVALID_ARGUMENT if the model has none. nullopt: all are in memory.
  std::optional<ExpertCache::Options> expert_cache = {};
  // Loads the means of keys, too, for pages with centred keys; errors of KeyMeans::Load.
  bool key_means = false;
  // Has the matrices in a file of this directory, which all processes map that load the same
  // checkpoint with the same options. The first of them writes it, while the others wait. Errors
  // name the directory or the file; INVALID_ARGUMENT with expert_cache. Empty: in memory of its
  // own.
  std::string packed_directory = {};
  int threads = 1;  // that pack a matrix
};

// Opens the checkpoint in `directory`, packs its weights and unmaps it. The pages of the files are
// released tensor by tensor, so the peak memory is the weights plus one tensor. Returns
// INVALID_ARGUMENT or NOT_FOUND that names the file, the tensor, the shape found and the shape that
// config.json implies. A tensor that the model does not use is an error too: a model that ignored
// it would compute other logits.
absl::StatusOr<LoadedModel> LoadModel(const std::string& directory,
                                      const LoadOptions& options = {});

// FAILED_PRECONDITION if the model in `directory` has no layer for multi-token prediction.
absl::Status CheckMtp(const std::string& directory, const ModelConfig& config);

// The fingerprint of a model without quantised weights, from the sum of its tensors' hashes
// (HashOf).
uint64_t ModelFingerprint(const Checkpoint& checkpoint, uint64_t hashes);
// LoadedModel::fingerprint without means of keys, from that.
uint64_t FingerprintOf(const Weights& weights, uint64_t checkpoint);
// The same with means whose hash (KeyMeans::Hash) is `means`.
uint64_t FingerprintWithMeans(uint64_t fingerprint, uint64_t means);

}  // namespace penstock
