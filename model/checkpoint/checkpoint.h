#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "model/checkpoint/model_config.h"
#include "model/checkpoint/safetensors.h"

namespace penstock {

// A checkpoint directory in Hugging Face's format: config.json and model.safetensors, or the shards
// that model.safetensors.index.json names. Or a GGUF file, which is read as the directory that it
// was converted from: its tensors have Hugging Face's names. A tensor with the matrices of all
// experts is one tensor for each of them (expert_tensors.h). The files stay mapped during the
// object's lifetime, and weights are read from disk on first access. Immutable: any thread may use
// it.
//
// This room, model/checkpoint, reads and validates a model's files. It may use base/ and model/gguf
// only. It does not know kernels, devices or the forward pass.
class Checkpoint {
 public:
  // `model` is a directory or a GGUF file, the first one of a split model. Returns NOT_FOUND that
  // names the missing file; INVALID_ARGUMENT and DATA_LOSS name file, tensor and field. Shard names
  // cannot leave the directory.
  static absl::StatusOr<Checkpoint> Open(const std::string& model);

  // The checkpoint's directory, or that of the GGUF file.
  const std::string& directory() const { return directory_; }
  const ModelConfig& config() const { return config_; }

  struct Tensor {
    // In a GGUF file dtype is the block type's name ("Q4_K", FindGgmlType) and shape counts
    // elements, outermost extent first. The bytes are rows of whole blocks.
    const SafetensorsTensor* info = nullptr;
    std::span<const std::byte> bytes;  // mapped, not aligned
    std::string_view file;             // file name in the directory
    // 0: rows are in Hugging Face's order. Else the head_dim d of q_proj or k_proj (weight or bias)
    // of a GGUF file (HasInterleavedRows), whose rows are pairs: row h*d + 2*i + j of the file is
    // row h*d + j*(d/2) + i of Hugging Face's checkpoint, for j in {0, 1} and i < d/2.
    int32_t interleaved_head = 0;
  };
  // Returns NOT_FOUND if there is no such tensor.
  absl::StatusOr<Tensor> Find(const std::string& name) const;
  std::vector<std::string_view> tensor_names() const;  // sorted

  std::vector<std::string> weight_files() const;  // paths, in the order of names or parts

  // XXH3-64 of config.json and of every shard's name, size and header, in order of names; for a
  // GGUF file of its size and header, in order of parts, whatever the file is called. Two
  // fine-tunes of one model share it: it identifies the files' structure, not the weights
  // (LoadedModel::fingerprint does).
  uint64_t layout_fingerprint() const { return layout_fingerprint_; }

 private:
  struct Shard {
    std::string name;
    MappedFile file;
    SafetensorsHeader header;
  };
  struct Place {
    size_t shard = 0;
    size_t tensor = 0;
    int32_t interleaved_head = 0;
  };

  Checkpoint() = default;
  absl::Status OpenDirectory();
  absl::Status OpenGguf(const std::string& path);
  absl::Status OpenShards(const std::vector<std::string>& names);
  // Makes one tensor for each expert of those that have the matrices of all (expert_tensors.h).
  absl::Status SplitExperts();
  absl::Status CheckIndex(const std::map<std::string, std::string>& weight_map) const;
  absl::Status FingerprintDirectory();
  void FingerprintGguf();

  std::string directory_;
  ModelConfig config_;
  std::vector<Shard> shards_;
  std::map<std::string, Place, std::less<>> places_;
  uint64_t layout_fingerprint_ = 0;
};

// Parses the weight_map of a model.safetensors.index.json: tensor name to shard name. Limits: 64
// MiB and 4,096 shards; a shard is a plain file name that ends in ".safetensors".
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view text);

}  // namespace penstock
