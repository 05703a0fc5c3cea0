#pragma once

#include <string>

#include "model/checkpoint/checkpoint.h"
#include "model/weights/formats/tensor_source.h"

namespace penstock {

// The tensors of a checkpoint, which must outlive this. Get reads nothing: the views are mapped
// files, so shapes and dtypes cost no I/O. INVALID_ARGUMENT names a tensor of another dtype than
// those of TensorDtype and block_types.h. Any thread may use it.
class CheckpointTensors final : public TensorSource {
 public:
  explicit CheckpointTensors(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  absl::StatusOr<TensorView> Get(const std::string& name) const override;
  bool Has(const std::string& name) const override;
  bool HasBlocks(const std::string& name) const override;
  // The name in the files: those of GPT-2, and of models that were saved without their head, as
  // embedding models are, have names without the first word.
  std::string StoredName(const std::string& name) const;

 private:
  const Checkpoint& checkpoint_;
};

}  // namespace penstock
