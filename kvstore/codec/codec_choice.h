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

// What a codec does on this machine, in raw bytes.
struct KvCodecRates {
  KvCodecSpec spec;
  double encode_bytes_per_s = 0;
  double decode_bytes_per_s = 0;
  double ratio = 1;  // raw over encoded bytes
};

// Encodes and decodes a few MiB of what looks like KV with each codec, some tens of milliseconds
// each; the ratios are of that data too, and only where to start from. `calibration` is for those
// that need one.
std::vector<KvCodecRates> MeasureKvCodecs(std::span<const KvCodecSpec> specs,
                                          const KvCalibration* calibration = nullptr);

// Which codec a link shall use, by arithmetic: the least time for a byte. Pure; one to a link,
// one thread at a time.
class KvCodecChoice {
 public:
  // `candidates` always include raw, whatever is given.
  explicit KvCodecChoice(std::vector<KvCodecRates> candidates);

  // Seconds that a raw byte takes through encoder, link and decoder: all of the longest, and half
  // of the others, which overlap with it but for the first slab and the last and run on cores that
  // the engines want. Arithmetic only: Choose also knows how far it was off lately.
  static double SecondsPerByte(const KvCodecRates& rates, double link_bytes_per_s);

  // For a few slabs in a row, of those that `allowed` names (raw always is one). Changes its mind
  // only for a gain of 3 %, and leaves raw only for 6 % more. Now and then it takes another that is
  // not far behind, to know it: raw above all, as nothing tells so well what the link does, and
  // from further behind where the link is `at_least` so fast. Without a rate of the link: raw,
  // which measures it.
  KvCodecSpec Choose(std::optional<double> link_bytes_per_s, std::span<const KvCodecSpec> allowed,
                     bool at_least = false);
  // One slab, through all three.
  Duration Predicted(const KvCodecSpec& spec, double link_bytes_per_s, double slab_bytes) const;
  // The last of them.
  Duration Decoding(const KvCodecSpec& spec, double slab_bytes) const;
  // What really came of a slab: ratios follow the data, rates the load of the machine.
  void OnEncoded(const KvCodecSpec& spec, size_t raw_bytes, size_t encoded_bytes, Duration took);

  // What a few slabs in a row really took that were predicted to take so long.
  void OnDelivered(const KvCodecSpec& spec, Duration predicted, Duration real);

  const std::vector<KvCodecRates>& candidates() const { return candidates_; }

 private:
  // How many times longer than predicted the last few rows took. Their median counts: one that
  // waited for something else says nothing of a codec.
  struct PredictionErrors {
    void Add(double factor, int64_t row);
    void AppendTo(std::vector<double>& all) const;

    std::array<double, 9> factors{};  // a ring
    size_t rows = 0;                  // since it was forgotten
    int64_t newest = 0;               // of rows_
  };
  double Seconds(size_t candidate, double link_bytes_per_s) const;
  // Another than the current one, once in a while; of those not far behind, the one that was used
  // longest ago.
  std::optional<size_t> LookAt(std::span<const double> costs, bool at_least);
  std::optional<size_t> IndexOf(const KvCodecSpec& spec) const;

  std::vector<KvCodecRates> candidates_;             // the first is raw
  std::vector<PredictionErrors> prediction_errors_;  // of each
  double experienced_bytes_per_s_ = 0;               // of the link, when prediction_errors_ began
  PredictionErrors common_;                          // of all together
  int64_t rows_ = 0;                                 // delivered
  size_t current_ = 0;
  int since_look_ = 0;  // choices
  int look_every_ = 0;  // of them
};

}  // namespace penstock
