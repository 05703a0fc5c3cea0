#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/codec/codec_calibration.h"
#include "proto/worker.pb.h"

namespace penstock {

// The lossy codecs that a worker sends or takes for requests that allow them, and what they need.
// Immutable; any thread.
class LossyKv {
 public:
  // `lossy_kv` is the flag's value, see ParseLossyCodecs. INVALID_ARGUMENT or FAILED_PRECONDITION
  // name the flag and what a codec wants: pages of bf16, other dimensions, or the calibration that
  // `model` (a directory) lacks. "all" leaves out what needs one that is not there, and says so.
  static absl::StatusOr<std::unique_ptr<LossyKv>> Open(const std::string& lossy_kv,
                                                       const std::string& model,
                                                       const KvLayout& layout);

  const std::vector<KvCodecSpec>& codecs() const { return codecs_; }       // from fine to coarse
  const KvCalibration* calibration() const { return calibration_.get(); }  // null: none needed
  // Those that `policy` (of a request to a worker) allows. INVALID_ARGUMENT for an unknown policy.
  absl::StatusOr<std::vector<KvCodecSpec>> AllowedBy(const std::string& policy) const;
  // What routers are told.
  void Describe(v1::WorkerState* state) const;

 private:
  LossyKv() = default;

  std::vector<KvCodecSpec> codecs_;
  std::unique_ptr<const KvCalibration> calibration_;
};

}  // namespace penstock
