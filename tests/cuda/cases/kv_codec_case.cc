#include "tests/cuda/cases/kv_codec_case.h"

#include <algorithm>

#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda {
namespace {

constexpr int kProcessors = 8;

bool IsLossless(KvCodecKind kind) {
  return kind == KvCodecKind::kLx16 || kind == KvCodecKind::kLxr;
}

KvRowCode CodeOf(KvCodecKind kind, bool keys) {
  switch (kind) {
    case KvCodecKind::kF8:
      return KvRowCode::kF8E4m3;
    case KvCodecKind::kK8v4:
      return keys ? KvRowCode::kI8 : KvRowCode::kI4;
    case KvCodecKind::kI4r:
      return keys ? KvRowCode::kI4Rotated : KvRowCode::kI4;
    default:
      return KvRowCode::kI8;
  }
}

}  // namespace

struct KvCodecBench::Memory {
  Memory(KvCodecKind kind, uint32_t elements)
      : values(elements),
        payload(elements * 2),
        tiles(LosslessTiles(elements, kLx16Tile)),
        segments(LosslessSegmentsMax(elements, kLx16Tile)),
        words(kind == KvCodecKind::kLxr ? LxrScratchBytes(elements) : 1),
        partials(ChecksumChunks(elements * 2)),
        result(1) {}
  DeviceArray<Bf16> values;
  DeviceArray<std::byte> payload;
  DeviceArray<KvTile> tiles;
  DeviceArray<KvSegment> segments;
  DeviceArray<std::byte> words;
  DeviceArray<uint32_t> partials;
  DeviceArray<KvCodecResult> result;
};

std::vector<Bf16> KvCodecValues(const KvCodecShape& shape) {
  std::vector<Bf16> values(shape.elements());
  uint32_t state = 12345;
  for (Bf16& value : values) {
    state = state * 1664525u + 1013904223u;
    // Exponents fall off as those of a model do.
    uint32_t exponent = 128;
    for (uint32_t bits = state >> 8; bits % 2 != 0 && exponent > 100; bits /= 2) --exponent;
    if ((state >> 9 & 0x1ffu) == 7) exponent = 60;
    value.bits = static_cast<uint16_t>((state >> 16 & 0x807fu) | exponent << 7);
  }
  return values;
}

KvCodecBench::KvCodecBench(KvCodecKind kind, const KvCodecShape& shape)
    : kind_(kind), shape_(shape), memory_(new Memory(kind, shape.elements())) {}
KvCodecBench::~KvCodecBench() { delete memory_; }

Bf16* KvCodecBench::values() const { return memory_->values.data(); }

LosslessParams KvCodecBench::Lossless() const {
  return {.values = memory_->values.data(),
          .elements = shape_.elements(),
          .payload = memory_->payload.data(),
          .tiles = memory_->tiles.data(),
          .segments = memory_->segments.data(),
          .words = memory_->words.data(),
          .result = memory_->result.data()};
}

KvRowsParams KvCodecBench::Rows() const {
  KvRowsParams params{.values = memory_->values.data(),
                      .payload = memory_->payload.data(),
                      .layers = shape_.blocks * shape_.layers,
                      .heads = shape_.heads,
                      .planes = 2,
                      .slots = shape_.slots,
                      .groups = 1,
                      .dims = shape_.dims,
                      .codes = {CodeOf(kind_, true), CodeOf(kind_, false)},
                      .result = memory_->result.data()};
  const uint32_t rows = shape_.heads * shape_.slots;  // of a plane
  params.scales_offset =
      rows * shape_.dims * (RowCodeBits(params.codes[0]) + RowCodeBits(params.codes[1])) / 8;
  params.exact_offset = params.scales_offset + 2 * rows * (kind_ == KvCodecKind::kF8 ? 2 : 4);
  params.layer_bytes = params.exact_offset;
  return params;
}

Kv2Params KvCodecBench::Kv2() const {
  return {.values = memory_->values.data(),
          .payload = memory_->payload.data(),
          .layers = shape_.blocks * shape_.layers,
          .heads = shape_.heads,
          .planes = 2,
          .slots = shape_.slots,
          .dims = shape_.dims,
          .result = memory_->result.data()};
}

uint32_t KvCodecBench::FixedBytes() const {
  if (IsLossless(kind_)) return 0;
  const uint32_t layers = shape_.blocks * shape_.layers;
  if (kind_ != KvCodecKind::kKv2) return layers * Rows().layer_bytes;
  const uint32_t groups = shape_.dims + shape_.slots * shape_.dims / 32;
  return layers * shape_.heads * (8 + 2 * groups + shape_.slots * shape_.dims / 2);
}

void KvCodecBench::Encode() const {
  ClearKvCodecResult(memory_->result.data(), nullptr);
  if (kind_ == KvCodecKind::kLx16) {
    EncodeLx16(Lossless(), nullptr);
  } else if (kind_ == KvCodecKind::kLxr) {
    EncodeLxr(Lossless(), nullptr);
  } else if (kind_ == KvCodecKind::kKv2) {
    EncodeKv2(Kv2(), nullptr);
  } else {
    EncodeKvRows(Rows(), nullptr);
  }
  SettlePayload({.raw = reinterpret_cast<const std::byte*>(values()),
                 .raw_bytes = shape_.elements() * 2,
                 .payload = memory_->payload.data(),
                 .coded_bytes = FixedBytes(),
                 .result = memory_->result.data()},
                kProcessors, nullptr);
  ExpectNoDeviceError("encoding KV");
}

void KvCodecBench::Decode() const {
  if (kind_ == KvCodecKind::kKv2) return DecodeKv2(Kv2(), nullptr);
  if (!IsLossless(kind_)) return DecodeKvRows(Rows(), nullptr);
  LosslessParams params = Lossless();
  params.payload_bytes = payload_bytes();
  kind_ == KvCodecKind::kLx16 ? DecodeLx16(params, nullptr) : DecodeLxr(params, nullptr);
  ExpectNoDeviceError("decoding KV");
}

uint32_t KvCodecBench::payload_bytes() const { return memory_->result.Read()[0].payload_bytes; }

bool KvCodecBench::FoundInParallel() const {
  const uint32_t tile = kind_ == KvCodecKind::kLx16 ? kLx16Tile : kLxrTile;
  const std::vector<KvSegment> segments = memory_->segments.Read();
  uint32_t end = 0;
  for (uint32_t i = 0; i < LosslessSegments(payload_bytes(), tile); ++i) {
    if (segments[i].first != end) return false;
    end = segments[i].end;
  }
  return end == payload_bytes();
}

uint32_t KvCodecBench::Checksum(const void* bytes, uint32_t size) const {
  ChecksumPayload({.bytes = static_cast<const std::byte*>(bytes),
                   .size_max = size,
                   .partials = memory_->partials.data(),
                   .result = memory_->result.data()},
                  kProcessors, nullptr);
  return memory_->result.Read()[0].checksum;
}
uint32_t KvCodecBench::PayloadChecksum() const {
  return Checksum(memory_->payload.data(), payload_bytes());
}
uint32_t KvCodecBench::ValuesChecksum() const {
  return Checksum(memory_->values.data(), shape_.elements() * 2);
}

KvCodecSums RunKvCodec(KvCodecKind kind) {
  const KvCodecShape shape;
  const std::vector<Bf16> values = KvCodecValues(shape);
  const KvCodecBench bench(kind, shape);
  CopyToDevice(bench.values(), values.data(), values.size() * sizeof(Bf16), nullptr);
  bench.Encode();
  KvCodecSums sums{.payload_bytes = bench.payload_bytes(), .payload = bench.PayloadChecksum()};
  FillDevice(bench.values(), 0xff, values.size() * sizeof(Bf16), nullptr);
  bench.Decode();
  sums.decoded = bench.ValuesChecksum();
  return sums;
}

bool RoundTripsManyTiles(KvCodecKind kind) {
  const KvCodecShape shape{.blocks = 181, .layers = 4};  // 1,448 tiles of lx16
  const std::vector<Bf16> values = KvCodecValues(shape);
  const size_t bytes = values.size() * sizeof(Bf16);
  const KvCodecBench bench(kind, shape);
  CopyToDevice(bench.values(), values.data(), bytes, nullptr);
  bench.Encode();
  if (bench.payload_bytes() >= bytes) return false;
  FillDevice(bench.values(), 0xff, bytes, nullptr);
  bench.Decode();
  std::vector<Bf16> decoded(values.size());
  CopyToHost(decoded.data(), bench.values(), bytes, nullptr);
  Synchronize(nullptr);
  const auto equal = [](Bf16 a, Bf16 b) { return a.bits == b.bits; };
  return bench.FoundInParallel() && std::ranges::equal(values, decoded, equal);
}

const std::vector<KvCodecCase>& KvCodecCases() {
  using enum KvCodecKind;
  static const std::vector<KvCodecCase> cases = {
      {"lx16", kLx16, {99088, 0xe4dafc77, 0x0337bd08}},
      {"lxr", kLxr, {83168, 0x24f2394c, 0x0337bd08}},
      {"f8", kF8, {66560, 0x76d79061, 0xd707ea97}},
      {"i8", kI8, {67584, 0x98d61971, 0x6cac190a}},
      {"k8v4", kK8v4, {51200, 0x0f2e8646, 0x52234cf2}},
      {"i4r", kI4r, {34816, 0xd559f390, 0xa4536c3f}},
      {"kv2", kKv2, {22656, 0xa252794d, 0x0167ddb5}},
  };
  return cases;
}

}  // namespace penstock::cuda
