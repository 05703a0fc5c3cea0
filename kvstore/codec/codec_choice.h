#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_calibration.h"

namespace penstock {

// A codec's throughput on this machine, in raw bytes per second.
struct KvCodecRates {
  KvCodecSpec spec;
  double encode_bytes_per_s = 0;
  double decode_bytes_per_s = 0;
  double ratio = 1;  // raw over encoded bytes
};

// Encodes and decodes a few MiB of synthetic KV with each codec, which takes some tens of
// milliseconds for each. The ratios are those of the synthetic data and serve only as start values.
// `calibration` is required for codecs that NeedsCalibration.
std::vector<KvCodecRates> MeasureKvCodecs(std::span<const KvCodecSpec> specs,
                                          const KvCalibration* calibration = nullptr);

// Chooses the codec of a link: the one with the least predicted time for a byte. Pure: no clock.
// One object for each link; one thread at a time.
class KvCodecChoice {
 public:
  // Raw is always a candidate.
  explicit KvCodecChoice(std::vector<KvCodecRates> candidates);

  // Predicted seconds of a raw byte through encoder, link and decoder: the longest stage in full
  // and half of the others. They overlap with the longest stage except for the first and the last
  // slab, but use cores that the engines need. Does not include the learnt prediction errors, which
  // Choose does.
  static double SecondsPerByte(const KvCodecRates& rates, double link_bytes_per_s);

  // Chooses the codec of the next burst of slabs among `allowed` and raw. Changes the codec only
  // for a gain of 3 %, and leaves raw only for 6 % more. Sometimes explores another codec that is
  // not much slower: raw above all, because it measures the link best, and even a much slower one
  // when the link's rate is only a lower bound (`at_least`). Without a link rate the choice is raw,
  // which measures the link.
  KvCodecSpec Choose(std::optional<double> link_bytes_per_s, std::span<const KvCodecSpec> allowed,
                     bool at_least = false);
  // The predicted time of one slab through encoder, link and decoder.
  Duration Predicted(const KvCodecSpec& spec, double link_bytes_per_s, double slab_bytes) const;
  // The predicted decoding time of one slab.
  Duration Decoding(const KvCodecSpec& spec, double slab_bytes) const;
  // Reports a slab's encoding: ratios adapt to the data, rates to the machine's load.
  void OnEncoded(const KvCodecSpec& spec, size_t raw_bytes, size_t encoded_bytes, Duration took);

  // Reports the predicted and the real time of a burst of slabs.
  void OnDelivered(const KvCodecSpec& spec, Duration predicted, Duration real);

  const std::vector<KvCodecRates>& candidates() const { return candidates_; }

 private:
  // The ratios of real to predicted time of the last few bursts. Their median is used, so that one
  // burst that waited for other reasons does not count against a codec.
  struct PredictionErrors {
    void Add(double factor, int64_t burst);
    void AppendTo(std::vector<double>& all) const;

    std::array<double, 9> factors{};  // a ring buffer
    size_t bursts = 0;                // bursts since the last expiry
    int64_t newest = 0;               // value of bursts_ at the last burst
  };
  double Seconds(size_t candidate, double link_bytes_per_s) const;
  // The codec to explore now, if any: among those that are not much slower, the one unused for
  // longest.
  std::optional<size_t> Explore(std::span<const double> costs, bool at_least);
  std::optional<size_t> IndexOf(const KvCodecSpec& spec) const;

  std::vector<KvCodecRates> candidates_;             // the first is raw
  std::vector<PredictionErrors> prediction_errors_;  // by candidate
  // The link rate for which prediction_errors_ are valid.
  double errors_link_bytes_per_s_ = 0;
  PredictionErrors common_;  // of all candidates together
  int64_t bursts_ = 0;       // delivered bursts
  size_t current_ = 0;
  int since_exploration_ = 0;     // choices since the last exploration
  int exploration_interval_ = 0;  // choices between explorations
};

}  // namespace penstock
