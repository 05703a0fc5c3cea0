#include "kvstore/codec_choice.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"

namespace penstock {
namespace {

// Another codec must save this share of the time: less than anybody would notice, more than noise.
constexpr double kHysteresis = 0.04;
// And this share more to be taken instead of raw: a link seems slower than it is when what goes
// over it is small, and coding takes cores that the engines want.
constexpr double kWorth = 0.15;
// Of the newest slab in what is known of a codec.
constexpr double kNewest = 0.25;

constexpr KvCodecRates kRaw{.spec = {KvCodec::kRaw, 0},
                            .encode_bytes_per_s = INFINITY,
                            .decode_bytes_per_s = INFINITY,
                            .ratio = 1};

double SecondsOf(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Channels of different widths, as keys have.
std::vector<std::byte> KvLikeBytes(const KvRun& run) {
  std::vector<std::byte> raw(run.RawBytes());
  auto* values = reinterpret_cast<Bf16*>(raw.data());
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> widths(run.head_dim);
  for (float& width : widths) width = std::exp(0.7f * normal(engine));
  // A table of draws, gone through at an odd stride: drawing every value would take longer than
  // what is measured.
  std::vector<float> draws(4093);
  for (float& draw : draws) draw = normal(engine);
  for (size_t i = 0; i < run.Elements(); ++i) {
    values[i] = ToBf16(draws[i * 31 % draws.size()] * widths[i % widths.size()]);
  }
  return raw;
}

template <class Call>
double BytesPerSecond(size_t bytes, const Call& call) {
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const double took = SecondsOf(std::chrono::steady_clock::now() - start);
    best = std::max(best, static_cast<double>(bytes) / std::max(took, 1e-9));
  }
  return best;
}

}  // namespace

std::vector<KvCodecRates> MeasureKvCodecs(std::span<const KvCodecSpec> specs) {
  const KvRun run{.blocks = 64, .layers = 1, .kv_heads = 4, .block_tokens = 16, .head_dim = 128};
  const std::vector<std::byte> raw = KvLikeBytes(run);
  std::vector<std::byte> encoded(EncodedKvBound(run)), decoded(raw.size());
  std::vector<KvCodecRates> rates;
  for (const KvCodecSpec& spec : specs) {
    if (spec.codec == KvCodec::kRaw) continue;
    size_t used = 0;
    KvCodecRates measured{.spec = spec};
    measured.encode_bytes_per_s = BytesPerSecond(raw.size(), [&] {
      const auto done = EncodeKv(spec, run, {.checksum = false}, raw, encoded);
      PENSTOCK_CHECK(done.ok());
      used = *done;
    });
    measured.decode_bytes_per_s = BytesPerSecond(raw.size(), [&] {
      PENSTOCK_CHECK(
          DecodeKv(spec, run, {.checksum = false}, std::span(encoded).first(used), decoded).ok());
    });
    measured.ratio = static_cast<double>(raw.size()) / static_cast<double>(used);
    rates.push_back(measured);
  }
  return rates;
}

KvCodecChoice::KvCodecChoice(std::vector<KvCodecRates> candidates)
    : candidates_(std::move(candidates)) {
  std::erase_if(candidates_, [](const KvCodecRates& rates) { return rates.spec == kRaw.spec; });
  candidates_.insert(candidates_.begin(), kRaw);
}

double KvCodecChoice::SecondsPerByte(const KvCodecRates& rates, double link_bytes_per_s) {
  return 1 / rates.encode_bytes_per_s + 1 / (rates.ratio * link_bytes_per_s) +
         1 / rates.decode_bytes_per_s;
}

KvCodecSpec KvCodecChoice::Choose(std::optional<double> link_bytes_per_s,
                                  std::span<const KvCodecSpec> allowed) {
  if (!link_bytes_per_s) return kRaw.spec;
  const auto may = [&](const KvCodecRates& rates) {
    return rates.spec == kRaw.spec ||
           std::find(allowed.begin(), allowed.end(), rates.spec) != allowed.end();
  };
  const auto seconds = [&](const KvCodecRates& rates) {
    const double seconds_per_byte = SecondsPerByte(rates, *link_bytes_per_s);
    return rates.spec == kRaw.spec ? (1 - kWorth) * seconds_per_byte : seconds_per_byte;
  };
  size_t best = 0;
  for (size_t i = 1; i < candidates_.size(); ++i) {
    if (may(candidates_[i]) && seconds(candidates_[i]) < seconds(candidates_[best])) best = i;
  }
  const bool kept = may(candidates_[current_]) &&
                    seconds(candidates_[best]) > (1 - kHysteresis) * seconds(candidates_[current_]);
  if (!kept) current_ = best;
  return candidates_[current_].spec;
}

Duration KvCodecChoice::Predicted(const KvCodecSpec& spec, double link_bytes_per_s,
                                  double slab_bytes) const {
  for (const KvCodecRates& rates : candidates_) {
    if (!(rates.spec == spec)) continue;
    const double seconds =
        slab_bytes / rates.encode_bytes_per_s + slab_bytes / (rates.ratio * link_bytes_per_s);
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
  return {};
}

void KvCodecChoice::OnEncoded(const KvCodecSpec& spec, size_t raw_bytes, size_t encoded_bytes,
                              Duration took) {
  for (KvCodecRates& rates : candidates_) {
    if (!(rates.spec == spec) || spec == kRaw.spec) continue;
    const double ratio = static_cast<double>(raw_bytes) / static_cast<double>(encoded_bytes);
    const double rate = static_cast<double>(raw_bytes) / std::max(SecondsOf(took), 1e-9);
    rates.ratio += kNewest * (ratio - rates.ratio);
    rates.encode_bytes_per_s += kNewest * (rate - rates.encode_bytes_per_s);
  }
}

}  // namespace penstock
