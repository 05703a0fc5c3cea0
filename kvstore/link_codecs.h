#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "kvstore/codec_choice.h"
#include "kvstore/link_rate.h"

namespace penstock {

// One slab on its way, once it is there.
struct KvSlabReport {
  KvCodecSpec codec;  // that was chosen
  size_t raw_bytes = 0;
  size_t wire_bytes = 0;
  Duration encode{};     // packing and encoding
  Duration link{};       // the link's time that is put down to it
  Duration predicted{};  // of both; zero where the link was not known yet
};

// What a sender knows of its links, by wire address, and the codecs it takes for them. One thread
// at a time.
class LinkCodecs {
 public:
  // `choices` not empty: instead of `fixed`, whichever of them or raw takes least time.
  LinkCodecs(KvCodecSpec fixed, std::vector<KvCodecRates> choices);

  // For a slab of report.raw_bytes, of those that `taken` names and raw. Notes codec and prediction
  // in the report.
  void Choose(const std::string& address, std::span<const KvCodecSpec> taken, KvSlabReport& report);
  // What came of it: report.wire_bytes and report.encode.
  void OnEncoded(const std::string& address, const KvSlabReport& report);
  // Every OnPut ends with one OnEnded; `delivered` are bytes, 0 when the Put failed. Returns the
  // link's time that is put down to it.
  void OnPut(const std::string& address, TimePoint now);
  Duration OnEnded(const std::string& address, TimePoint now, size_t delivered);
  // What comes next at this address may be another process. No Put is under way.
  void Forget(const std::string& address) { links_.erase(address); }

 private:
  struct Link {
    explicit Link(std::vector<KvCodecRates> choices) : choice(std::move(choices)) {}
    LinkRate rate;
    KvCodecChoice choice;
  };
  Link& To(const std::string& address);

  const KvCodecSpec fixed_;
  const std::vector<KvCodecRates> choices_;
  std::map<std::string, Link> links_;  // those with a lane
};

}  // namespace penstock
