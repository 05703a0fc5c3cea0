#include "kvstore/link_codecs.h"

#include <algorithm>
#include <utility>

namespace penstock {

LinkCodecs::LinkCodecs(KvCodecSpec fixed, std::vector<KvCodecRates> choices)
    : fixed_(fixed), choices_(std::move(choices)) {}

LinkCodecs::Link& LinkCodecs::To(const std::string& address) {
  return links_.try_emplace(address, choices_).first->second;
}

void LinkCodecs::Choose(const std::string& address, std::span<const KvCodecSpec> taken,
                        KvSlabReport& report) {
  if (choices_.empty()) {
    const bool takes = std::find(taken.begin(), taken.end(), fixed_) != taken.end();
    report.codec = takes ? fixed_ : KvCodecSpec{};
    return;
  }
  Link& link = To(address);
  const auto rate = link.rate.bytes_per_s();
  report.codec = link.choice.Choose(rate, taken);
  if (!rate) return;
  report.predicted =
      link.choice.Predicted(report.codec, *rate, static_cast<double>(report.raw_bytes));
}

void LinkCodecs::OnEncoded(const std::string& address, const KvSlabReport& report) {
  To(address).choice.OnEncoded(report.codec, report.raw_bytes, report.wire_bytes, report.encode);
}

void LinkCodecs::OnPut(const std::string& address, TimePoint now) { To(address).rate.OnPut(now); }

Duration LinkCodecs::OnEnded(const std::string& address, TimePoint now, size_t delivered) {
  return To(address).rate.OnEnded(now, delivered);
}

}  // namespace penstock
