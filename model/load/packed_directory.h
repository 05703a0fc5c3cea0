#pragma once

#include <string>

#include "base/owned_fd.h"
#include "base/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/weights/weight_policy.h"

namespace penstock {

// The lock of a directory for packed weights: one process at a time has it. It ends with this
// object, and with the process.
class PackedDirectoryLock {
 public:
  // Waits for it. Errors name the directory.
  static absl::StatusOr<PackedDirectoryLock> Take(const std::string& directory);

 private:
  explicit PackedDirectoryLock(OwnedFd fd) : fd_(std::move(fd)) {}
  OwnedFd fd_;
};

// The name of the file for a model's packed weights. It follows from the structure of the
// checkpoint, from the sizes and the times of the last change of its files, and from what decides
// about the form of the weights. So a checkpoint that is replaced gets another file. Errors name
// the file of the checkpoint.
absl::StatusOr<std::string> PackedNameOf(const Checkpoint& checkpoint, const ModelConfig& config,
                                         WeightPolicy policy);

}  // namespace penstock
