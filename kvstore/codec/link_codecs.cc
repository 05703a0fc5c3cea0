#include "kvstore/codec/link_codecs.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

// A burst ends kRowPause after its last slab has arrived, or when it has reached kRowBytes and
// kRowTime.
constexpr Duration kRowPause = std::chrono::milliseconds(2);
constexpr size_t kRowBytes = size_t{8} << 20;
constexpr Duration kRowTime = std::chrono::milliseconds(50);

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
  const KvCodecSpec& going = link.row.codec;
  const bool may = going == KvCodecSpec{} || std::find(allowed.codecs.begin(), allowed.codecs.end(),
                                                       going) != allowed.codecs.end();
  if (!GoesOn(link, report.started)) {
    EndRow(link);  // first, because Choose may expire the prediction errors
    report.codec = link.choice.Choose(rate, allowed.codecs, link.rate.at_least());
    link.row = {.codec = report.codec,
                .started = report.started,
                .blind = !rate,
                .goes_on = link.rate.busy()};
  } else if (may) {
    report.codec = going;
  } else {
    report.codec = link.choice.Choose(rate, allowed.codecs, link.rate.at_least());
    link.row.mixed = true;
  }
  link.row.raw_bytes += report.raw_bytes;
  if (!rate) return;
  report.predicted =
      link.choice.Predicted(report.codec, *rate, static_cast<double>(report.raw_bytes));
}

bool LinkCodecs::GoesOn(const Link& link, TimePoint now) {
  if (link.row.blind && link.rate.bytes_per_s()) return false;
  if (link.row.raw_bytes == 0) return false;
  if (link.row.raw_bytes >= kRowBytes && now - link.row.started >= kRowTime) return false;
  return link.rate.busy() || now - std::max(link.ended, link.row.started) < kRowPause;
}

void LinkCodecs::EndRow(Link& link) {
  const Row& row = link.row;
  if (row.mixed || row.predicted == Duration::zero()) return;
  if (row.goes_on && row.raw_bytes < kRowBytes) return;
  link.choice.OnDelivered(row.codec, row.predicted, row.took);
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
  if (report.started < link.row.started) return;
  link.row.mixed |= report.codec != link.row.codec;
  link.row.predicted += report.predicted;
  // Sum over its slabs; an earlier burst may still have been in flight when this one began
  link.row.took += report.took;
}

}  // namespace penstock
