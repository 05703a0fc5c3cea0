#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "kvstore/codec.h"

namespace penstock {

// What a codec does on this machine, in raw bytes.
struct KvCodecRates {
  KvCodecSpec spec;
  double encode_bytes_per_s = 0;
  double decode_bytes_per_s = 0;
  double ratio = 1;  // raw over encoded bytes
};

// Encodes and decodes a few MiB of what looks like KV with each codec, some tens of milliseconds
// each; the ratios are of that data too, and only where to start from. `specs` need no calibration.
std::vector<KvCodecRates> MeasureKvCodecs(std::span<const KvCodecSpec> specs);

// Which codec a link shall use, by arithmetic: the least time for a byte. Pure; one to a link,
// one thread at a time.
class KvCodecChoice {
 public:
  // `candidates` always include raw, whatever is given.
  explicit KvCodecChoice(std::vector<KvCodecRates> candidates);

  // Seconds that a raw byte takes through encoder, link and decoder, one after the other: they do
  // overlap, but the first and the last run on cores that the engines want. A link that is about as
  // fast as a codec is left alone.
  static double SecondsPerByte(const KvCodecRates& rates, double link_bytes_per_s);

  // Of those that `allowed` names (raw always is one). Changes its mind only for a gain of 4 %, and
  // leaves raw only for 15 % more.
  // Without a rate of the link: raw, which measures it.
  KvCodecSpec Choose(std::optional<double> link_bytes_per_s, std::span<const KvCodecSpec> allowed);
  // Encoding and sending one slab.
  Duration Predicted(const KvCodecSpec& spec, double link_bytes_per_s, double slab_bytes) const;
  // What really came of a slab: ratios follow the data, rates the load of the machine.
  void OnEncoded(const KvCodecSpec& spec, size_t raw_bytes, size_t encoded_bytes, Duration took);

  const std::vector<KvCodecRates>& candidates() const { return candidates_; }

 private:
  std::vector<KvCodecRates> candidates_;  // the first is raw
  size_t current_ = 0;
};

}  // namespace penstock
