#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "kvstore/codec/codec_choice.h"
#include "kvstore/codec/link_rate.h"

namespace penstock {

// The report of one delivered slab.
struct KvSlabReport {
  KvCodecSpec codec;  // the chosen codec
  size_t raw_bytes = 0;
  size_t wire_bytes = 0;
  TimePoint started{};  // start of packing
  Duration encode{};    // packing and encoding
  // Predicted time until it is decoded; zero when the link's rate was unknown.
  Duration predicted{};
  // Real time, from `started` or, if later, from the arrival of the previous slab on the link.
  Duration took{};
};

// A sender's knowledge of its links, by wire address, and the choice of their codecs. One thread at
// a time.
class LinkCodecs {
 public:
  // With non-empty `choices`, the fastest of them and raw is chosen for each link; otherwise
  // `fixed` is used.
  LinkCodecs(KvCodecSpec fixed, std::vector<KvCodecRates> choices);

  // The codecs that a slab may use besides raw. The peer accepts all of them.
  struct Allowed {
    std::span<const KvCodecSpec> codecs;
    // The lossy ones among them, which the request allows. They take precedence over `fixed`.
    std::span<const KvCodecSpec> lossy = {};
  };
  // Chooses the codec of a slab of report.raw_bytes; sets codec and prediction in the report.
  void Choose(const std::string& address, const Allowed& allowed, KvSlabReport& report);
  // Reports the result of encoding: report.wire_bytes and report.encode.
  void OnEncoded(const std::string& address, const KvSlabReport& report);
  // Every OnPut is followed by one OnEnded, which sets the real time in the report.
  void OnPut(const std::string& address, TimePoint now);
  void OnEnded(const std::string& address, TimePoint now, bool delivered, KvSlabReport& report);
  // Forgets a link, because the next process at this address may be another one. No Put may be
  // pending.
  void Forget(const std::string& address) { links_.erase(address); }

 private:
  // A burst of slabs with one codec decision. Only its total time is meaningful: the first slab
  // pays the latency, and the others follow quickly.
  struct Burst {
    KvCodecSpec codec;
    TimePoint started{};
    Duration predicted{};  // sum over delivered slabs
    Duration took{};       // sum over delivered slabs
    size_t raw_bytes = 0;  // chosen so far
    bool mixed = false;    // some slabs used other codecs
    bool blind = false;    // chosen before the link's rate was known
    // Continues a burst that was cut; slabs in flight then arrive quickly.
    bool continues = false;
  };
  struct Link {
    explicit Link(std::vector<KvCodecRates> choices) : choice(std::move(choices)) {}
    LinkRate rate;
    KvCodecChoice choice;
    TimePoint ended{};  // arrival of the latest slab
    Burst burst{};
  };
  Link& To(const std::string& address);
  static bool ContinuesBurst(const Link& link, TimePoint now);
  static void EndBurst(Link& link);

  const KvCodecSpec fixed_;
  const std::vector<KvCodecRates> choices_;
  std::map<std::string, Link> links_;  // links with an open lane
};

}  // namespace penstock
