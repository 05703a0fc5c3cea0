#include "kvstore/codec/link_codecs.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

// A burst ends kBurstPause after its last slab has arrived, or when it has reached kBurstBytes and
// kBurstTime.
constexpr Duration kBurstPause = std::chrono::milliseconds(2);
constexpr size_t kBurstBytes = size_t{8} << 20;
constexpr Duration kBurstTime = std::chrono::milliseconds(50);

}  // namespace

LinkCodecs::LinkCodecs(KvCodecSpec fixed, std::vector<KvCodecRates> choices)
    : fixed_(fixed), choices_(std::move(choices)) {}

LinkCodecs::Link& LinkCodecs::To(const std::string& address) {
  return links_.try_emplace(address, choices_).first->second;
}

void LinkCodecs::Choose(const std::string& address, const Allowed& allowed, KvSlabReport& report) {
  if (choices_.empty()) {
    const auto& codecs = allowed.codecs;
    const bool takes = std::find(codecs.begin(), codecs.end(), fixed_) != codecs.end();
    report.codec = !allowed.lossy.empty() ? allowed.lossy[0] : takes ? fixed_ : KvCodecSpec{};
    return;
  }
  Link& link = To(address);
  const auto rate = link.rate.bytes_per_s();
  const KvCodecSpec& going = link.burst.codec;
  const bool may = going == KvCodecSpec{} || std::find(allowed.codecs.begin(), allowed.codecs.end(),
                                                       going) != allowed.codecs.end();
  if (!ContinuesBurst(link, report.started)) {
    EndBurst(link);  // first, because Choose may expire the prediction errors
    report.codec = link.choice.Choose(rate, allowed.codecs, link.rate.at_least());
    link.burst = {.codec = report.codec,
                  .started = report.started,
                  .blind = !rate,
                  .continues = link.rate.busy()};
  } else if (may) {
    report.codec = going;
  } else {
    report.codec = link.choice.Choose(rate, allowed.codecs, link.rate.at_least());
    link.burst.mixed = true;
  }
  link.burst.raw_bytes += report.raw_bytes;
  if (!rate) return;
  report.predicted =
      link.choice.Predicted(report.codec, *rate, static_cast<double>(report.raw_bytes));
}

bool LinkCodecs::ContinuesBurst(const Link& link, TimePoint now) {
  if (link.burst.blind && link.rate.bytes_per_s()) return false;
  if (link.burst.raw_bytes == 0) return false;
  if (link.burst.raw_bytes >= kBurstBytes && now - link.burst.started >= kBurstTime) return false;
  return link.rate.busy() || now - std::max(link.ended, link.burst.started) < kBurstPause;
}

void LinkCodecs::EndBurst(Link& link) {
  const Burst& burst = link.burst;
  if (burst.mixed || burst.predicted == Duration::zero()) return;
  if (burst.continues && burst.raw_bytes < kBurstBytes) return;
  link.choice.OnDelivered(burst.codec, burst.predicted, burst.took);
}

void LinkCodecs::OnEncoded(const std::string& address, const KvSlabReport& report) {
  To(address).choice.OnEncoded(report.codec, report.raw_bytes, report.wire_bytes, report.encode);
}

void LinkCodecs::OnPut(const std::string& address, TimePoint now) { To(address).rate.OnPut(now); }

void LinkCodecs::OnEnded(const std::string& address, TimePoint now, bool delivered,
                         KvSlabReport& report) {
  Link& link = To(address);
  link.rate.OnEnded(
      now, {.bytes = delivered ? report.wire_bytes : 0,
            .making = report.encode,
            .handling = link.choice.Decoding(report.codec, static_cast<double>(report.raw_bytes))});
  if (!delivered) return;
  report.took = now - std::max(report.started, link.ended);
  link.ended = now;
  if (report.started < link.burst.started) return;
  link.burst.mixed |= report.codec != link.burst.codec;
  link.burst.predicted += report.predicted;
  // Sum over its slabs; an earlier burst may still have been in flight when this one began.
  link.burst.took += report.took;
}

}  // namespace penstock
