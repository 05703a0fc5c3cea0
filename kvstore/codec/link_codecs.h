#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "kvstore/codec/codec_choice.h"
#include "kvstore/codec/link_rate.h"

namespace penstock {

// One slab on its way, once it is there.
struct KvSlabReport {
  KvCodecSpec codec;  // that was chosen
  size_t raw_bytes = 0;
  size_t wire_bytes = 0;
  TimePoint started{};   // packing
  Duration encode{};     // packing and encoding
  Duration predicted{};  // until it is decoded; zero where the link was not known yet
  // What it took, from `started` or, later, from when the slab before it on the link was there.
  Duration took{};
};

// What a sender knows of its links, by wire address, and the codecs it takes for them. One thread
// at a time.
class LinkCodecs {
 public:
  // `choices` not empty: instead of `fixed`, whichever of them or raw takes least time.
  LinkCodecs(KvCodecSpec fixed, std::vector<KvCodecRates> choices);

  // What a slab may be besides raw. Both are codecs that the peer takes.
  struct Allowed {
    std::span<const KvCodecSpec> codecs;
    // Of them those that lose something, which the request has asked for. They go before `fixed`.
    std::span<const KvCodecSpec> lossy = {};
  };
  // For a slab of report.raw_bytes. Notes codec and prediction in the report.
  void Choose(const std::string& address, const Allowed& allowed, KvSlabReport& report);
  // What came of it: report.wire_bytes and report.encode.
  void OnEncoded(const std::string& address, const KvSlabReport& report);
  // Every OnPut ends with one OnEnded, which notes in the report what it took.
  void OnPut(const std::string& address, TimePoint now);
  void OnEnded(const std::string& address, TimePoint now, bool delivered, KvSlabReport& report);
  // What comes next at this address may be another process. No Put is under way.
  void Forget(const std::string& address) { links_.erase(address); }

 private:
  // Slabs in a row with one choice for all: the first of them waits for what comes once, and the
  // others come quickly, so that one alone tells little.
  struct Row {
    KvCodecSpec codec;
    TimePoint started{};
    Duration predicted{};  // of the slabs that are there
    Duration took{};       // of the same
    size_t raw_bytes = 0;  // chosen for
    bool mixed = false;    // other codecs, too
    bool blind = false;    // chosen before the link was known
    bool goes_on = false;  // where another was cut: what was under way then comes quickly
  };
  struct Link {
    explicit Link(std::vector<KvCodecRates> choices) : choice(std::move(choices)) {}
    LinkRate rate;
    KvCodecChoice choice;
    TimePoint ended{};  // the latest slab
    Row row{};
  };
  Link& To(const std::string& address);
  static bool GoesOn(const Link& link, TimePoint now);
  static void EndRow(Link& link);

  const KvCodecSpec fixed_;
  const std::vector<KvCodecRates> choices_;
  std::map<std::string, Link> links_;  // those with a lane
};

}  // namespace penstock
