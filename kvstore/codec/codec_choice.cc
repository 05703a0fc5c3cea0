#include "kvstore/codec/codec_choice.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"

namespace penstock {
namespace {

// Minimum relative gain for changing the codec: too small for users to notice, larger than noise.
constexpr double kGainMin = 0.03;
// Additional gain required to leave raw, because encoding uses CPU cores that the engines need.
constexpr double kGainOverRawMin = 0.06;
// The share of the shorter pipeline stages that does not overlap with the longest one.
constexpr double kNotOverlapped = 0.5;
// The weight of the newest slab in a codec's moving averages.
constexpr double kNewestWeight = 0.25;
// A codec's prediction errors expire after this number of bursts with other codecs, so it is tried
// again.
constexpr int64_t kErrorsExpireAfter = 64;
// PredictionErrors are valid for one link speed; they expire when it changes by this factor.
constexpr double kLinkChangeFactor = 1.6;
// Exploration: one choice in kExploreInterval uses a codec other than the best, if it is predicted
// to take at most kExploreCostMax times as long. The interval doubles after each exploration that
// changed nothing.
constexpr int kExploreInterval = 4, kExploreIntervalMax = 64;
constexpr double kExploreCostMax = 1.3;
// The limits for raw when the link may be faster than measured.
constexpr int kExploreIntervalMaxLowerBound = 32;
constexpr double kExploreCostMaxLowerBound = 2.5;
// A median of prediction errors is clamped to this range.
constexpr double kPredictionErrorMin = 0.25, kPredictionErrorMax = 4;

constexpr KvCodecRates kRaw{.spec = {KvCodec::kRaw, 0},
                            .encode_bytes_per_s = INFINITY,
                            .decode_bytes_per_s = INFINITY,
                            .ratio = 1};

double SecondsOf(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// The lower median; 1 for an empty vector.
double MedianOf(std::vector<double>& values) {
  if (values.empty()) return 1;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

constexpr size_t kMeasuredBytes = size_t{4} << 20;

KvRun MeasuredRun(const KvCalibration* calibration) {
  KvRun run{.layers = 1, .kv_heads = 4, .block_tokens = 16, .head_dim = 128};
  if (calibration != nullptr) {
    const KvCalibration::Geometry& geometry = calibration->geometry();
    run = {.layers = geometry.layers,
           .kv_heads = geometry.kv_heads,
           .planes = geometry.planes,
           .block_tokens = 16,
           .head_dim = geometry.head_dim,
           .rope_dim = geometry.rope_dim};
  }
  run.blocks = 1;
  run.blocks = static_cast<uint32_t>(std::max<size_t>(1, kMeasuredBytes / run.RawBytes()));
  return run;
}

// Random values with channels of different widths, as keys have. With a calibration, they are
// centred on its means and as wide as its steps.
std::vector<std::byte> KvLikeBytes(const KvRun& run, const KvCalibration* calibration) {
  constexpr float kStepsWide = 4;  // relative to the finest level's step
  std::vector<std::byte> raw(run.RawBytes());
  auto* values = reinterpret_cast<Bf16*>(raw.data());
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> widths(run.head_dim);
  for (float& width : widths) width = std::exp(0.7f * normal(engine));
  // Draws come from a table, visited at an odd stride: one random draw for each value would take
  // longer than the measurement.
  std::vector<float> draws(4093);
  for (float& draw : draws) draw = normal(engine);
  const size_t coded = run.head_dim - run.rope_dim;
  for (size_t i = 0; i < run.Elements(); ++i) {
    const size_t dim = i % run.head_dim;
    const size_t piece = i / run.PieceElements();
    const size_t plane = piece % run.planes, head = piece / run.planes % run.kv_heads;
    const size_t layer = piece / run.planes / run.kv_heads % run.layers;
    float mean = 0, width = widths[dim];
    if (calibration != nullptr && dim < coded) {
      mean = calibration->mean(layer, head, plane)[dim];
      width = kStepsWide * calibration->step(1, layer, plane);
    }
    values[i] = ToBf16(mean + draws[i * 31 % draws.size()] * width);
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

std::vector<KvCodecRates> MeasureKvCodecs(std::span<const KvCodecSpec> specs,
                                          const KvCalibration* calibration) {
  const KvRun run = MeasuredRun(calibration);
  const std::vector<std::byte> raw = KvLikeBytes(run, calibration);
  std::vector<std::byte> encoded(EncodedKvBound(run)), decoded(raw.size());
  const KvCodecContext context{.calibration = calibration, .checksum = false};
  std::vector<KvCodecRates> rates;
  for (const KvCodecSpec& spec : specs) {
    if (spec.codec == KvCodec::kRaw) continue;
    size_t used = 0;
    KvCodecRates measured{.spec = spec};
    measured.encode_bytes_per_s = BytesPerSecond(raw.size(), [&] {
      const auto done = EncodeKv(spec, run, context, raw, encoded);
      PENSTOCK_CHECK(done.ok());
      used = *done;
    });
    measured.decode_bytes_per_s = BytesPerSecond(raw.size(), [&] {
      PENSTOCK_CHECK(DecodeKv(spec, run, context, std::span(encoded).first(used), decoded).ok());
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
  prediction_errors_.resize(candidates_.size());
}

double KvCodecChoice::SecondsPerByte(const KvCodecRates& rates, double link_bytes_per_s) {
  const double encode = 1 / rates.encode_bytes_per_s, decode = 1 / rates.decode_bytes_per_s;
  const double link = 1 / (rates.ratio * link_bytes_per_s);
  const double longest = std::max({encode, link, decode});
  return longest + kNotOverlapped * (encode + link + decode - longest);
}

std::optional<size_t> KvCodecChoice::IndexOf(const KvCodecSpec& spec) const {
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (candidates_[i].spec == spec) return i;
  }
  return std::nullopt;
}

void KvCodecChoice::PredictionErrors::Add(double factor, int64_t burst) {
  if (burst - newest >= kErrorsExpireAfter) bursts = 0;
  factors[bursts++ % factors.size()] = factor;
  newest = burst;
}

void KvCodecChoice::PredictionErrors::AppendTo(std::vector<double>& all) const {
  const size_t known = std::min(bursts, factors.size());
  all.insert(all.end(), factors.begin(), factors.begin() + static_cast<std::ptrdiff_t>(known));
}

double KvCodecChoice::Seconds(size_t candidate, double link_bytes_per_s) const {
  std::vector<double> common, factors;
  common_.AppendTo(common);
  // When all predictions are wrong by the same factor, those of an unused codec are, too. The
  // common error therefore counts like one burst of the codec itself.
  factors.push_back(MedianOf(common));
  const PredictionErrors& own = prediction_errors_[candidate];
  if (bursts_ - own.newest < kErrorsExpireAfter) own.AppendTo(factors);
  return SecondsPerByte(candidates_[candidate], link_bytes_per_s) * MedianOf(factors);
}

KvCodecSpec KvCodecChoice::Choose(std::optional<double> link_bytes_per_s,
                                  std::span<const KvCodecSpec> allowed, bool at_least) {
  if (!link_bytes_per_s) return kRaw.spec;
  const double change = *link_bytes_per_s / std::max(errors_link_bytes_per_s_, 1.0);
  if (change > kLinkChangeFactor || change < 1 / kLinkChangeFactor) {
    std::fill(prediction_errors_.begin(), prediction_errors_.end(), PredictionErrors());
    common_ = {};
    errors_link_bytes_per_s_ = *link_bytes_per_s;
    exploration_interval_ = kExploreInterval;
  }
  // Infinite for codecs that are not allowed.
  std::vector<double> costs(candidates_.size(), INFINITY);
  costs[0] = (1 - kGainOverRawMin) * Seconds(0, *link_bytes_per_s);
  for (size_t i = 1; i < candidates_.size(); ++i) {
    const bool may =
        std::find(allowed.begin(), allowed.end(), candidates_[i].spec) != allowed.end();
    if (may) costs[i] = Seconds(i, *link_bytes_per_s);
  }
  const auto best =
      static_cast<size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  if (costs[best] <= (1 - kGainMin) * costs[current_]) current_ = best;
  if (current_ == 0) {
    exploration_interval_ = kExploreInterval;
    return kRaw.spec;
  }
  return candidates_[Explore(costs, at_least).value_or(current_)].spec;
}

std::optional<size_t> KvCodecChoice::Explore(std::span<const double> costs, bool at_least) {
  std::optional<size_t> found;
  for (size_t i = 0; i < costs.size(); ++i) {
    const double max = i == 0 && at_least ? kExploreCostMaxLowerBound : kExploreCostMax;
    if (i == current_ || costs[i] > max * costs[current_]) continue;
    if (!found || prediction_errors_[i].newest < prediction_errors_[*found].newest) found = i;
  }
  if (!found) return std::nullopt;
  if (at_least)
    exploration_interval_ = std::min(exploration_interval_, kExploreIntervalMaxLowerBound);
  if (++since_exploration_ < exploration_interval_) return std::nullopt;
  since_exploration_ = 0;
  exploration_interval_ = std::min(2 * exploration_interval_, kExploreIntervalMax);
  return found;
}

Duration KvCodecChoice::Predicted(const KvCodecSpec& spec, double link_bytes_per_s,
                                  double slab_bytes) const {
  const std::optional<size_t> index = IndexOf(spec);
  if (!index) return {};
  const double seconds = slab_bytes * SecondsPerByte(candidates_[*index], link_bytes_per_s);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

Duration KvCodecChoice::Decoding(const KvCodecSpec& spec, double slab_bytes) const {
  const std::optional<size_t> index = IndexOf(spec);
  if (!index) return {};
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(slab_bytes / candidates_[*index].decode_bytes_per_s));
}

void KvCodecChoice::OnEncoded(const KvCodecSpec& spec, size_t raw_bytes, size_t encoded_bytes,
                              Duration took) {
  const std::optional<size_t> index = IndexOf(spec);
  if (!index || *index == 0) return;
  KvCodecRates& rates = candidates_[*index];
  const double ratio = static_cast<double>(raw_bytes) / static_cast<double>(encoded_bytes);
  const double rate = static_cast<double>(raw_bytes) / std::max(SecondsOf(took), 1e-9);
  rates.ratio += kNewestWeight * (ratio - rates.ratio);
  rates.encode_bytes_per_s += kNewestWeight * (rate - rates.encode_bytes_per_s);
}

void KvCodecChoice::OnDelivered(const KvCodecSpec& spec, Duration predicted, Duration real) {
  if (predicted <= Duration::zero()) return;
  const double factor =
      std::clamp(SecondsOf(real) / SecondsOf(predicted), kPredictionErrorMin, kPredictionErrorMax);
  ++bursts_;
  common_.Add(factor, bursts_);
  if (const std::optional<size_t> used = IndexOf(spec))
    prediction_errors_[*used].Add(factor, bursts_);
}

}  // namespace penstock
