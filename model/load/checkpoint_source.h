#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/load/checkpoint_tensors.h"
#include "model/load/tensor_hashes.h"

namespace penstock {

// A checkpoint as the source of a model's weights, which records the tensors that are in use. Get
// is const for its callers, and one thread at a time calls it.
class CheckpointSource final : public TensorSource {
 public:
  // Called by Get; `first` says whether this is the first use of the tensor.
  using OnGet = std::function<void(const NamedBytes& tensor, bool first)>;

  explicit CheckpointSource(const Checkpoint& checkpoint, OnGet on_get = nullptr)
      : checkpoint_(checkpoint), tensors_(checkpoint), on_get_(std::move(on_get)) {}

  absl::StatusOr<TensorView> Get(const std::string& name) const override;
  bool Has(const std::string& name) const override { return tensors_.Has(name); }
  bool HasBlocks(const std::string& name) const override { return tensors_.HasBlocks(name); }

  // INVALID_ARGUMENT names a tensor that is not in use although it would have an effect: a model
  // that ignored it would compute other logits. `config`: as the weights were read with it.
  absl::Status CheckAllUsed(const ModelConfig& config) const;
  const std::vector<NamedBytes>& used() const { return used_; }  // in the order of first use

 private:
  const Checkpoint& checkpoint_;
  const CheckpointTensors tensors_;
  const OnGet on_get_;
  mutable std::set<std::string, std::less<>> names_;
  mutable std::vector<NamedBytes> used_;
};

}  // namespace penstock
