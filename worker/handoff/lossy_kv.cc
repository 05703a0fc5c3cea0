#include "worker/handoff/lossy_kv.h"

#include <algorithm>

#include "base/log/log.h"
#include "kvstore/names/kv_policy.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<LossyKv>> LossyKv::Open(const std::string& lossy_kv,
                                                       const std::string& model,
                                                       const KvLayout& layout) {
  std::unique_ptr<LossyKv> opened(new LossyKv);
  const auto names = ParseLossyCodecs(lossy_kv);
  if (!names.ok()) return Annotate(names.status(), "lossy_kv");
  if (names->empty()) return opened;
  if (layout.dtype != KvDtype::kBf16) {
    return InvalidArgument("lossy_kv={} needs kv_format=bf16; pages of {} go as they are", lossy_kv,
                           KvPageFormatName(layout.format()));
  }
  auto calibration = KvCalibration::Load(model);
  const absl::Status loaded = calibration.status();
  if (loaded.ok()) {
    opened->calibration_ = std::make_unique<const KvCalibration>(*std::move(calibration));
  }
  const KvRun block = RunOf(layout, 0, 1, 0, static_cast<uint16_t>(layout.layers));
  for (const std::string& name : *names) {
    ASSIGN_OR_RETURN(const KvCodecSpec codec, ParseKvCodec(name));
    const bool lacks_tables = NeedsCalibration(codec) && opened->calibration_ == nullptr;
    if (lacks_tables && lossy_kv == "all") {
      LogWarning("codec_left_out", "lossy_kv=all leaves out {}: {}", name, Message(loaded));
      continue;
    }
    if (lacks_tables) {
      return FailedPrecondition("lossy_kv: {} cannot be used: {}", name, Message(loaded));
    }
    const absl::Status able = CheckKvRun(codec, block, {.calibration = opened->calibration_.get()});
    if (!able.ok()) return Annotate(able, "lossy_kv");
    opened->codecs_.push_back(codec);
  }
  return opened;
}

absl::StatusOr<std::vector<KvCodecSpec>> LossyKv::AllowedBy(const std::string& policy) const {
  const auto parsed = ParseKvPolicy(policy);
  if (!parsed.ok()) return Annotate(parsed.status(), "kv_policy");
  const std::vector<std::string> names = LossyCodecsOf(*parsed);
  std::vector<KvCodecSpec> allowed;
  std::copy_if(codecs_.begin(), codecs_.end(), std::back_inserter(allowed),
               [&](const KvCodecSpec& codec) {
                 return std::find(names.begin(), names.end(), KvCodecName(codec)) != names.end();
               });
  return allowed;
}

void LossyKv::Describe(v1::WorkerState* state) const {
  for (const KvCodecSpec& codec : codecs_) state->add_lossy_codecs(KvCodecName(codec));
  state->set_kv_calibration(calibration_ == nullptr ? 0 : calibration_->id());
}

}  // namespace penstock
