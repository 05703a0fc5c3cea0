#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/codec/codec_calibration.h"
#include "proto/worker.pb.h"

namespace penstock {

// The lossy codecs that a worker uses for requests that allow them, and their calibration.
// Immutable; any thread.
class LossyKv {
 public:
  // `lossy_kv` is the flag's value, see ParseLossyCodecs. INVALID_ARGUMENT or FAILED_PRECONDITION
  // name the flag and what a codec needs: bf16 pages, other dimensions, or a calibration in `model`
  // (a directory). "all" leaves out codecs whose calibration is missing, and logs that.
  static absl::StatusOr<std::unique_ptr<LossyKv>> Open(const std::string& lossy_kv,
                                                       const std::string& model,
                                                       const KvLayout& layout);

  const std::vector<KvCodecSpec>& codecs() const { return codecs_; }       // from fine to coarse
  const KvCalibration* calibration() const { return calibration_.get(); }  // null: none needed
  // The codecs that a request's `policy` allows. INVALID_ARGUMENT for an unknown policy.
  absl::StatusOr<std::vector<KvCodecSpec>> AllowedBy(const std::string& policy) const;
  // Sets the codecs in the state that routers watch.
  void Describe(v1::WorkerState* state) const;

 private:
  LossyKv() = default;

  std::vector<KvCodecSpec> codecs_;
  std::unique_ptr<const KvCalibration> calibration_;
};

}  // namespace penstock
