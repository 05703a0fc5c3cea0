#include "lab/micro/codec.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "kernels/cpu/isa.h"
#include "kernels/kv_codec.h"
#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_calibration.h"
#include "lab/eval/kv_source.h"
#include "lab/micro/codec_general.h"

namespace penstock {
namespace {

constexpr int64_t kSampleTokens = 8192;
constexpr size_t kRunBytes = size_t{4} << 20;
constexpr size_t kTotalBytes = size_t{512} << 20;  // beyond the share of a cache that one core gets

double Seconds(const auto& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The raw runs, and where their encoded and decoded forms go.
class Data {
 public:
  explicit Data(const KvSample& sample) {
    const size_t block = sample.layout.PayloadBytes();
    const auto blocks = static_cast<uint32_t>(std::max<size_t>(1, kRunBytes / block));
    run_ = RunOf(sample.layout, 0, blocks, 0, static_cast<uint16_t>(sample.layout.layers));
    runs_ = std::max<size_t>(1, kTotalBytes / run_.RawBytes());
    raw_ = Buffer(runs_ * run_.RawBytes());
    for (size_t i = 0; i < runs_ * blocks; ++i) {
      const auto source = static_cast<uint32_t>(i % static_cast<size_t>(sample.blocks));
      std::memcpy(raw_.as<std::byte>() + i * block, sample.view().Block(source), block);
    }
    place_ = std::max(EncodedKvBound(run_), GeneralBound(GeneralCodec::kLz4, run_.RawBytes()));
    encoded_ = Buffer(runs_ * place_);
    decoded_ = Buffer(raw_.bytes());
    std::memset(encoded_.as<std::byte>(), 1, encoded_.bytes());  // so that all of it is resident
    std::memset(decoded_.as<std::byte>(), 1, decoded_.bytes());
    used_.resize(runs_);
  }

  const KvRun& run() const { return run_; }
  size_t runs() const { return runs_; }
  double raw_bytes() const { return static_cast<double>(runs_ * run_.RawBytes()); }
  std::span<const std::byte> Raw(size_t i) const {
    return {raw_.as<std::byte>() + i * run_.RawBytes(), run_.RawBytes()};
  }
  std::span<std::byte> Place(size_t i) const {
    return {encoded_.as<std::byte>() + i * place_, place_};
  }
  std::span<const std::byte> Encoded(size_t i) const { return Place(i).first(used_[i]); }
  std::span<std::byte> Decoded(size_t i) const {
    return {decoded_.as<std::byte>() + i * run_.RawBytes(), run_.RawBytes()};
  }
  void SetUsed(size_t i, size_t bytes) { used_[i] = bytes; }
  double ratio() const {
    double used = 0;
    for (const size_t bytes : used_) used += static_cast<double>(bytes);
    return raw_bytes() / used;
  }

 private:
  KvRun run_;
  size_t runs_ = 0, place_ = 0;
  Buffer raw_, encoded_, decoded_;
  std::vector<size_t> used_;
};

struct Rates {
  double encode = 0, decode = 0, ratio = 0;  // GB/s of raw bytes
};

// One pass each way over all runs; keeps the better rates.
void Measure(Data& data, const std::function<size_t(size_t)>& encode,
             const std::function<bool(size_t)>& decode, Rates& best) {
  const double there = Seconds([&] {
    for (size_t i = 0; i < data.runs(); ++i) data.SetUsed(i, encode(i));
  });
  const double back = Seconds([&] {
    for (size_t i = 0; i < data.runs(); ++i) PENSTOCK_CHECK(decode(i));
  });
  best.encode = std::max(best.encode, data.raw_bytes() / there / 1e9);
  best.decode = std::max(best.decode, data.raw_bytes() / back / 1e9);
  best.ratio = data.ratio();
}

void MeasureCodec(Data& data, const KvCodecSpec& spec, const KvCodecContext& context, Rates& best) {
  Measure(
      data,
      [&](size_t i) { return *EncodeKv(spec, data.run(), context, data.Raw(i), data.Place(i)); },
      [&](size_t i) {
        return DecodeKv(spec, data.run(), context, data.Encoded(i), data.Decoded(i)).ok();
      },
      best);
}

void MeasureGeneral(Data& data, GeneralCodec codec, Rates& best) {
  Measure(
      data, [&](size_t i) { return GeneralEncode(codec, data.Raw(i), data.Place(i)); },
      [&](size_t i) {
        return GeneralDecode(codec, data.Encoded(i), data.Decoded(i)) == data.Raw(i).size();
      },
      best);
}

double CopyRate(const Data& data) {
  const double seconds = Seconds([&] {
    for (size_t i = 0; i < data.runs(); ++i) {
      std::memcpy(data.Decoded(i).data(), data.Raw(i).data(), data.Raw(i).size());
    }
  });
  return data.raw_bytes() / seconds / 1e9;
}

// Symbols of exponents as lxr codes them, a tile that stays in the cache.
class RansBench {
 public:
  explicit RansBench(const Data& data) : symbols_(kSymbols), words_(2 * kSymbols + 64) {
    const auto* values = reinterpret_cast<const Bf16*>(data.Raw(0).data());
    const KvCodecOps& ops = ActiveKvCodecOps();
    std::vector<uint8_t> signs(kSymbols), exponents(kSymbols + 64);
    std::vector<uint16_t> positions(kSymbols + 64);
    const int base = std::max(15, ops.max_exponent(values, kSymbols)) - 15;
    PENSTOCK_CHECK_GE(ops.split_bytes(values, kSymbols, base, signs.data(), symbols_.data(),
                                      {positions.data(), exponents.data(), kSymbols}),
                      0);
    std::array<uint64_t, kRansSymbols> counts{};
    ops.count_symbols(symbols_.data(), kSymbols, counts.data());
    std::array<uint8_t, kRansSymbols> frequencies{};
    NormaliseRansFrequencies(counts, frequencies);
    PENSTOCK_CHECK(MakeRansTable(frequencies, table_));
  }

  void Run(Rates& best) {  // in giga-symbols/s
    const KvCodecOps& ops = ActiveKvCodecOps();
    uint8_t* const end = words_.data() + words_.size();
    const uint8_t* words = nullptr;
    RansStates states;
    const double there = Seconds([&] {
      for (int i = 0; i < kRepeats; ++i) {
        std::fill(std::begin(states.lane), std::end(states.lane), kRansLow);
        words = ops.rans_encode(symbols_.data(), kSymbols, table_, states, end);
      }
    });
    std::vector<uint8_t> back(kSymbols);
    const double again = Seconds([&] {
      for (int i = 0; i < kRepeats; ++i) {
        RansStates start = states;
        PENSTOCK_CHECK(ops.rans_decode(words, end, kSymbols, table_, start, back.data()) == end);
      }
    });
    PENSTOCK_CHECK(back == symbols_);
    best.encode = std::max(best.encode, 1e-9 * kSymbols * kRepeats / there);
    best.decode = std::max(best.decode, 1e-9 * kSymbols * kRepeats / again);
  }

 private:
  static constexpr int64_t kSymbols = 32768;
  static constexpr int kRepeats = 400;
  std::vector<uint8_t> symbols_, words_;
  RansTable table_;
};

// 16 / (8 + entropy of exponents): what coding exponents alone can reach.
double RatioBound(const Data& data) {
  std::array<double, 256> counts{};
  double total = 0, bits = 0;
  for (size_t i = 0; i < data.runs() && i < 4; ++i) {
    const auto* values = reinterpret_cast<const Bf16*>(data.Raw(i).data());
    for (size_t j = 0; j < data.run().Elements(); ++j, ++total) {
      ++counts[values[j].bits >> 7 & 0xff];
    }
  }
  for (const double count : counts) {
    if (count > 0) bits -= count / total * std::log2(count / total);
  }
  return 16 / (8 + bits);
}

void Append(std::vector<BenchRow>& rows, const std::string& name, const Rates& rates, double copy,
            double bound) {
  rows.push_back({name + "_encode", rates.encode, "GB/s", copy, rates.encode / copy});
  rows.push_back({name + "_decode", rates.decode, "GB/s", copy, rates.decode / copy});
  rows.push_back({name + "_ratio", rates.ratio, "ratio", bound, rates.ratio / bound});
}

struct Named {
  std::string name;
  std::function<void(Rates&)> measure;
  Rates best;
};

absl::StatusOr<Isa> SupportedIsa(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Isa isa : SupportedIsas()) {
    if (IsaName(isa) == name) return isa;
    names.push_back(IsaName(isa));
  }
  return InvalidArgument("isa is {}; this machine has {}", name, fmt::join(names, ", "));
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunCodecBench(
    const CodecBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  std::optional<ScopedIsa> forced;
  if (!options.isa.empty()) {
    ASSIGN_OR_RETURN(const Isa isa, SupportedIsa(options.isa));
    forced.emplace(isa);
  }
  progress("prefilling held-out text");
  ASSIGN_OR_RETURN(const KvSample sample,
                   PrefillSample(options.model, options.text, kSampleTokens, 1));
  const KvCalibration calibration = MeasureCalibration(sample);
  const KvCodecContext context{.calibration = &calibration};
  Data data(sample);
  std::vector<Named> codecs;
  for (const KvCodecSpec& spec : AllKvCodecs()) {
    codecs.push_back(
        {KvCodecName(spec),
         [&data, spec, &context](Rates& best) { MeasureCodec(data, spec, context, best); },
         {}});
  }
  codecs.push_back(
      {"zstd", [&](Rates& best) { MeasureGeneral(data, GeneralCodec::kZstd1, best); }, {}});
  codecs.push_back(
      {"lz4", [&](Rates& best) { MeasureGeneral(data, GeneralCodec::kLz4, best); }, {}});
  RansBench rans_bench(data);
  Rates rans;
  double copy = 0;
  for (int32_t round = 0; round < options.rounds; ++round) {
    for (Named& codec : codecs) {
      copy = std::max(copy, CopyRate(data));
      // The slow ones once: their rates need no best of many.
      const bool slow = codec.best.encode > 0 && codec.best.encode < 0.6;
      if (!slow) codec.measure(codec.best);
    }
    rans_bench.Run(rans);
    progress(fmt::format("round {} of {}: memcpy {:.1f} GB/s", round + 1, options.rounds, copy));
  }
  const double bound = RatioBound(data);
  std::vector<BenchRow> rows;
  for (const Named& codec : codecs) {
    Append(rows, codec.name, codec.best, copy, bound);
    if (codec.name != "cgx2") continue;
    const double both = 1 / (1 / codec.best.encode + 1 / codec.best.decode);
    rows.push_back({"cgx2_roundtrip", both, "GB/s", copy / 2, both / (copy / 2)});
  }
  rows.push_back({"rans_encode", rans.encode, "Gsymbols/s", copy, rans.encode / copy});
  rows.push_back({"rans_decode", rans.decode, "Gsymbols/s", copy, rans.decode / copy});
  rows.push_back({"memcpy", copy, "GB/s", copy, 1});
  return rows;
}

}  // namespace penstock
