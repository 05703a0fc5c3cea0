#include <gmock/gmock.h>

#include <cstring>
#include <functional>

#include "base/crc32c.h"
#include "kvstore/codec/codec_header.h"
#include "tests/cuda/cases/kv_codec_case.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/cuda/kernels/kv_codec_fixture.h"

namespace penstock {
namespace {

// Every codec once: levels of cgx differ in nothing but their tables.
std::vector<KvCodecSpec> EveryCodec() {
  std::vector<KvCodecSpec> specs = AllKvCodecs();
  std::erase_if(specs, [](const KvCodecSpec& spec) {
    return spec.codec == KvCodec::kCgx && spec.level != 2;
  });
  return specs;
}

// The CPU's tests', and two of which parts are kept as they are.
std::vector<KvRun> DeviceGeometries() {
  std::vector<KvRun> runs = Geometries();
  KvRun kept = SmallRun(), kept_latents = MlaRun();
  kept.protected_first = kept_latents.protected_last = 1;
  kept.protected_last = 2;
  runs.insert(runs.end(), {kept, kept_latents});
  return runs;
}

// A forged scale makes a NaN whose other bits differ from machine to machine.
std::vector<uint16_t> WithOneNan(const std::vector<Bf16>& values) {
  std::vector<uint16_t> bits = BitsOf(values);
  for (uint16_t& value : bits) value = (value & 0x7fff) > 0x7f80 ? uint16_t{0x7fc0} : value;
  return bits;
}

LosslessHead LosslessHeadAt(const std::byte* bytes) {
  LosslessHead head;
  std::memcpy(&head, bytes, sizeof(head));
  return head;
}

// After a change of the payload's size.
void SetPayloadBytes(std::vector<std::byte>& encoded) {
  auto header = DecodeKvCodecHeader(std::span(encoded).first(kKvCodecHeaderBytes));
  ASSERT_TRUE(header.ok());
  header->payload_bytes = static_cast<uint32_t>(encoded.size() - kKvCodecHeaderBytes);
  const KvCodecHeaderBytes bytes = EncodeKvCodecHeader(*header);
  std::copy(bytes.begin(), bytes.end(), encoded.begin());
}

class DeviceCodecs : public DeviceCodecTest {
 protected:
  // Both sides make the same bytes of `values`, and the same values of the bytes.
  void ExpectAgreement(const KvCodecSpec& spec, const KvRun& run, const KvCodecContext& context,
                       const std::vector<Bf16>& values) {
    const std::vector<std::byte> encoded = EncodeAll(spec, run, context, values);
    ASSERT_EQ(Encode(spec, run, context, values), encoded)
        << KvCodecName(spec) << " head_dim " << run.head_dim;
    const auto here = Decode(spec, run, context, encoded);
    ASSERT_TRUE(here.ok()) << here.status();
    const auto there = DecodeAll(spec, run, context, encoded);
    ASSERT_TRUE(there.ok()) << there.status();
    ASSERT_EQ(BitsOf(*here), BitsOf(*there)) << KvCodecName(spec) << " head_dim " << run.head_dim;
  }
};

TEST_F(DeviceCodecs, MakeTheBytesOfTheCpu) {
  for (const KvRun& run : DeviceGeometries()) {
    const KvCalibration calibration = CalibrationFor(run);
    for (const KvCodecSpec& spec : EveryCodec()) {
      ExpectAgreement(spec, run, {.calibration = &calibration}, KvLike(run, 1));
    }
  }
}

TEST_F(DeviceCodecs, EveryLevelOfCgx) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  std::vector<Bf16> values = KvLike(run, 3);
  for (size_t i = 0; i < values.size(); i += 50) values[i] = ToBf16(ToFloat(values[i]) * 20 + 30);
  for (uint8_t level = 1; level <= kCgxLevels; ++level) {
    ExpectAgreement({KvCodec::kCgx, level}, run, {.calibration = &calibration}, values);
    EXPECT_LT(Encode({KvCodec::kCgx, level}, run, {.calibration = &calibration}, values).size(),
              run.RawBytes());
  }
}

TEST_F(DeviceCodecs, FramesOfCgx) {
  KvRun run = SmallRun();
  run.blocks = 70;  // two frames of 32 blocks and one of 6
  run.kv_heads = run.layers = 1;
  const KvCalibration calibration = CalibrationFor(run);
  ExpectAgreement({KvCodec::kCgx, 2}, run, {.calibration = &calibration}, KvLike(run, 4));
  // Another one takes its place.
  KvRun other = SmallRun();
  other.head_dim = 32;
  const KvCalibration others = CalibrationFor(other);
  ExpectAgreement({KvCodec::kCgx, 2}, other, {.calibration = &others}, KvLike(other, 4));
}

TEST_F(DeviceCodecs, InWhateverOrderThreadsRun) {
  KvRun run = SmallRun();
  run.blocks = 2;
  const KvCalibration calibration = CalibrationFor(run);
  for (const auto order : cuda::emulator::kOrders) {
    const cuda::emulator::ScopedSchedule schedule(cuda::emulator::Copies::kLate, order);
    for (const KvCodecSpec& spec : EveryCodec()) {
      ExpectAgreement(spec, run, {.calibration = &calibration}, KvLike(run, 1));
    }
  }
}

// Values with the exponents that `exponent_of` makes of a random number.
std::vector<Bf16> ValuesOf(const KvRun& run, const std::function<uint64_t(uint64_t)>& exponent_of) {
  std::mt19937_64 random(run.Elements());
  std::vector<Bf16> values(run.Elements());
  for (Bf16& value : values) {
    const uint64_t draw = random();
    value.bits = static_cast<uint16_t>((draw >> 48 & 0x807f) | exponent_of(draw) << 7);
  }
  return values;
}

TEST_F(DeviceCodecs, LosslessTilesOfEveryKind) {
  // Values of so many exponents that a tile has few escapes, has many, or is stored.
  KvRun run = SmallRun();
  run.blocks = 9;
  for (const int spread : {1, 14, 16, 17, 20, 40, 250}) {
    std::vector<Bf16> values = ValuesOf(run, [&](uint64_t draw) {
      return draw % 16 != 0 ? 100 + draw / 16 % 10 : draw / 256 % spread;
    });
    values[7].bits = 0x7fc1;
    values[5000].bits = 0xff80;
    for (const auto order : cuda::emulator::kOrders) {
      if (order != cuda::emulator::kOrders[0] && spread != 17) continue;
      const cuda::emulator::ScopedSchedule schedule(cuda::emulator::Copies::kLate, order);
      ExpectAgreement({KvCodec::kLx16}, run, {}, values);
      ExpectAgreement({KvCodec::kLxr}, run, {}, values);
    }
  }
}

TEST_F(DeviceCodecs, LosslessTilesWithFewerEscapesBelowTheirHighestExponent) {
  // 1 value in 20 is just below the window of the highest exponent, that one value has.
  std::vector<Bf16> values = ValuesOf(SmallRun(), [](uint64_t draw) {
    return draw % 20 == 0 ? uint64_t{97} : 100 + draw / 32 % 10;
  });
  for (size_t i = 0; i < values.size(); i += 4096) values[i].bits = 112 << 7;
  ExpectAgreement({KvCodec::kLx16}, SmallRun(), {}, values);
  ExpectAgreement({KvCodec::kLxr}, SmallRun(), {}, values);
}

// Decodes a payload of the CPU by the kernels of a lossless codec alone.
class LosslessDecode {
 public:
  LosslessDecode(KvCodec codec, std::span<const std::byte> payload, size_t elements)
      : tile_(codec == KvCodec::kLx16 ? kLx16Tile : kLxrTile),
        payload_bytes_(static_cast<uint32_t>(payload.size())),
        payload_(std::vector<std::byte>(payload.begin(), payload.end())),
        values_(elements),
        tiles_(cuda::LosslessTiles(static_cast<uint32_t>(elements), tile_)),
        segments_(cuda::LosslessSegmentsMax(static_cast<uint32_t>(elements), tile_)),
        result_(1) {
    cuda::ClearKvCodecResult(result_.data(), nullptr);
    const cuda::LosslessParams params{.values = values_.data(),
                                      .elements = static_cast<uint32_t>(elements),
                                      .payload = payload_.data(),
                                      .payload_bytes = payload_bytes_,
                                      .tiles = tiles_.data(),
                                      .segments = segments_.data(),
                                      .result = result_.data()};
    codec == KvCodec::kLx16 ? cuda::DecodeLx16(params, nullptr) : cuda::DecodeLxr(params, nullptr);
    cuda::Synchronize(nullptr);
  }

  std::vector<Bf16> values() const { return values_.Read(); }
  uint32_t fault() const { return result_.Read()[0].fault; }
  uint32_t segments() const { return cuda::LosslessSegments(payload_bytes_, tile_); }
  // True if the tiles were found in parallel: each segment's tiles follow those of the one before.
  bool SegmentsMeet() const {
    const std::vector<cuda::KvSegment> all = segments_.Read();
    uint32_t end = 0;
    for (uint32_t i = 0; i < segments(); ++i) {
      if (all[i].first != end) return false;
      end = all[i].end;
    }
    return end == payload_bytes_;
  }

 private:
  uint32_t tile_, payload_bytes_;
  cuda::DeviceArray<std::byte> payload_;
  cuda::DeviceArray<Bf16> values_;
  cuda::DeviceArray<cuda::KvTile> tiles_;
  cuda::DeviceArray<cuda::KvSegment> segments_;
  cuda::DeviceArray<cuda::KvCodecResult> result_;
};

std::vector<std::byte> LosslessPayload(KvCodec codec, const KvRun& run,
                                       const std::vector<Bf16>& values) {
  std::vector<std::byte> encoded = EncodeAll({codec}, run, {.checksum = false}, values);
  encoded.erase(encoded.begin(), encoded.begin() + kKvCodecHeaderBytes);
  EXPECT_LT(encoded.size(), run.RawBytes());
  return encoded;
}

KvRun RunOfBlocks(uint32_t blocks) {  // of 2,048 elements each
  KvRun run = SmallRun();
  run.kv_heads = run.layers = 1;
  run.blocks = blocks;
  return run;
}

// Values of which some tiles have many escapes, and some tiles are stored.
std::vector<Bf16> ValuesOfUnequalTiles(const KvRun& run) {
  std::vector<Bf16> values = ValuesOf(run, [](uint64_t draw) { return 100 + draw % 9; });
  std::mt19937_64 random(7);
  for (size_t tile = 0; tile < values.size(); tile += 4096) {
    const uint64_t kind = tile == 0 ? 0 : random() % 8;
    const size_t end = std::min(values.size(), tile + 4096);
    for (size_t i = tile; i < end; ++i) {
      if (random() % 512 < kind * 8) values[i].bits = 50 << 7;
      if (kind == 7) values[i].bits = static_cast<uint16_t>(random());
    }
  }
  return values;
}

TEST_F(DeviceCodecs, TilesFoundInParallel) {
  for (const KvCodec codec : {KvCodec::kLx16, KvCodec::kLxr}) {
    for (const uint32_t blocks : {1, 2, 3, 16, 17, 86, 87, 700, 701}) {
      const KvRun run = RunOfBlocks(blocks);
      const std::vector<Bf16> values = ValuesOfUnequalTiles(run);
      const LosslessDecode decode(codec, LosslessPayload(codec, run, values), values.size());
      EXPECT_TRUE(decode.SegmentsMeet()) << KvCodecName({codec}) << " " << blocks;
      EXPECT_EQ(decode.fault(), cuda::kNoKvFault);
      EXPECT_EQ(BitsOf(decode.values()), BitsOf(values));
    }
  }
}

TEST_F(DeviceCodecs, MoreTilesThanThreadsPlaceAtOnce) {
  EXPECT_TRUE(cuda::RoundTripsManyTiles(cuda::KvCodecKind::kLx16));
}

// Signs and mantissas that look like heads of tiles, and so form chains that do not begin at a
// tile. `is_head` gets the index of a value in its tile, and the index of the tile. Returns true if
// the tiles were found in parallel.
bool DecodesHeadsAmongSigns(const std::function<bool(size_t, size_t)>& is_head) {
  const KvRun run = RunOfBlocks(200);
  std::vector<Bf16> values = ValuesOf(run, [](uint64_t) { return 110; });
  for (size_t i = 0; i < values.size(); ++i) {
    if (!is_head(i % 4096, i / 4096)) continue;
    const bool has_codes_size = i % 16 == 1;  // 2,048, little endian
    values[i].bits = static_cast<uint16_t>((values[i].bits & 0x7f80) | (has_codes_size ? 8 : 0));
  }
  const std::vector<std::byte> payload = LosslessPayload(KvCodec::kLx16, run, values);
  const LosslessDecode decode(KvCodec::kLx16, payload, values.size());
  EXPECT_EQ(decode.fault(), cuda::kNoKvFault);
  EXPECT_EQ(BitsOf(decode.values()), BitsOf(values));
  return decode.SegmentsMeet();
}

TEST_F(DeviceCodecs, BytesThatLookLikeHeads) {
  EXPECT_FALSE(DecodesHeadsAmongSigns([](size_t, size_t) { return true; }));
  int met = 0;
  for (size_t place = 0; place < 4096; place += 256) {
    met += DecodesHeadsAmongSigns([&](size_t i, size_t) { return i / 16 == place / 16; });
  }
  EXPECT_LT(met, 16);
  // The fifth segment has as many of them as tiles.
  EXPECT_FALSE(DecodesHeadsAmongSigns(
      [](size_t i, size_t tile) { return i / 16 == 200 && tile >= 42 && tile < 53; }));
}

TEST_F(DeviceCodecs, RandomBitsAreStored) {
  const KvRun run = SmallRun();
  std::mt19937_64 random(4);
  std::vector<Bf16> values(run.Elements());
  for (Bf16& value : values) value.bits = static_cast<uint16_t>(random());
  const KvCalibration calibration = CalibrationFor(run);
  for (const KvCodecSpec& spec : EveryCodec()) {
    ExpectAgreement(spec, run, {.calibration = &calibration}, values);
    const auto encoded = Encode(spec, run, {.calibration = &calibration}, values);
    EXPECT_EQ(encoded.size(), kKvCodecHeaderBytes + run.RawBytes()) << KvCodecName(spec);
  }
}

TEST_F(DeviceCodecs, ConstantsAndTheSmallest) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  for (const KvCodecSpec& spec : EveryCodec()) {
    for (const uint16_t bits : {0x0000, 0x0001, 0x8000, 0x3f80, 0x0080, 0x77ff}) {
      const std::vector<Bf16> values(run.Elements(), Bf16{bits});
      ExpectAgreement(spec, run, {.calibration = &calibration, .checksum = bits != 1}, values);
    }
  }
}

// 2.5 times a scale of 15, which is halfway between two levels: the product by the scale's
// reciprocal is below it.
TEST_F(DeviceCodecs, ValuesBetweenTwoLevelsOfKv2) {
  KvRun run = SmallRun();
  run.head_dim = 128;
  std::mt19937_64 random(9);
  std::vector<Bf16> values(run.Elements());
  for (Bf16& value : values) value = ToBf16(7.5f * static_cast<float>(random() % 7));
  ExpectAgreement({KvCodec::kKv2}, run, {}, values);
}

TEST_F(DeviceCodecs, ValuesThatNoLossyCodecHolds) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  for (const KvCodecSpec& spec : EveryCodec()) {
    for (const uint16_t bits : {0x7fc1, 0xff80, 0x7f00}) {
      std::vector<Bf16> values = KvLike(run, 2);
      values[values.size() - 777].bits = bits;
      ExpectAgreement(spec, run, {.calibration = &calibration}, values);
    }
  }
}

// Escapes that no encoder writes: of two of one value the later one counts.
TEST_F(DeviceCodecs, EscapesOfOneValueTakenInTurn) {
  const cuda::emulator::ScopedSchedule schedule(cuda::emulator::Copies::kLate,
                                                cuda::emulator::Order::kDescending);
  const KvRun run = SmallRun();
  const KvCodecContext context{.checksum = false};
  std::vector<Bf16> values = KvLike(run, 5);
  for (size_t i = 0; i < 4096; i += 97) values[i].bits = 0x1234;
  for (const KvCodec codec : {KvCodec::kLx16, KvCodec::kLxr}) {
    std::vector<std::byte> encoded = EncodeAll({codec}, run, context, values);
    std::byte* head = encoded.data() + kKvCodecHeaderBytes;
    const auto coded = LosslessHeadAt(head).coded;
    const size_t size = std::min<size_t>(codec == KvCodec::kLx16 ? 4096 : 32768, values.size());
    ASSERT_GT(LosslessHeadAt(head).escapes, 40);
    std::byte* positions = head + 16 + coded + size;
    std::copy_n(positions + 20, 2, positions + 60);
    positions[2 * LosslessHeadAt(head).escapes + 30] = std::byte{0x55};
    const auto there = DecodeAll({codec}, run, context, encoded);
    const auto here = Decode({codec}, run, context, encoded);
    ASSERT_TRUE(there.ok() && here.ok());
    EXPECT_EQ(BitsOf(*here), BitsOf(*there));
    const auto beyond = static_cast<uint16_t>(size);
    std::memcpy(positions + 60, &beyond, sizeof(beyond));
    EXPECT_EQ(DecodeAll({codec}, run, context, encoded).status().code(),
              absl::StatusCode::kDataLoss);
    EXPECT_THAT(Message(Decode({codec}, run, context, encoded).status()),
                testing::HasSubstr("an escape beyond its tile"));
  }
}

TEST_F(DeviceCodecs, RefuseStatesAndFrequenciesOutOfRange) {
  const KvRun run = SmallRun();
  const KvCodecContext context{.checksum = false};
  const std::vector<std::byte> encoded = EncodeAll({KvCodec::kLxr}, run, context, KvLike(run, 5));
  const size_t codes = kKvCodecHeaderBytes + 16;
  for (const uint32_t state : {0u, (1u << 15) - 1, 1u << 31, ~0u}) {
    std::vector<std::byte> changed = encoded;
    std::memcpy(changed.data() + codes + 16 + 4 * 40, &state, sizeof(state));
    EXPECT_THAT(Message(Decode({KvCodec::kLxr}, run, context, changed).status()),
                testing::HasSubstr("a state out of range"));
  }
  for (const int add : {-1, 1}) {
    std::vector<std::byte> changed = encoded;
    changed[codes + 7] = static_cast<std::byte>(static_cast<int>(changed[codes + 7]) + add);
    EXPECT_THAT(Message(Decode({KvCodec::kLxr}, run, context, changed).status()),
                testing::HasSubstr("frequencies that are not"));
  }
}

TEST_F(DeviceCodecs, RefuseEscapesTooFewOrTooMany) {
  KvRun run = SmallRun();
  run.layers = run.kv_heads = 1;  // one stream
  const KvCalibration calibration = CalibrationFor(run);
  const KvCodecContext context{.calibration = &calibration, .checksum = false};
  std::vector<Bf16> values = KvLike(run, 3);
  values[5] = values[3000] = ToBf16(1000);
  const std::vector<std::byte> encoded = EncodeAll({KvCodec::kCgx, 2}, run, context, values);
  for (const int add : {-1, 1}) {
    std::vector<std::byte> changed = encoded;
    changed.resize(encoded.size() + 2 * add);
    std::byte& escapes = changed[kKvCodecHeaderBytes + 4];
    escapes = static_cast<std::byte>(static_cast<int>(escapes) + add);
    SetPayloadBytes(changed);
    EXPECT_FALSE(DecodeAll({KvCodec::kCgx, 2}, run, context, changed).ok());
    EXPECT_THAT(Message(Decode({KvCodec::kCgx, 2}, run, context, changed).status()),
                testing::HasSubstr("KV codec cgx2: escapes that are not those of its elements"));
  }
}

// A payload that turns out no smaller than the raw bytes is not written.
TEST_F(DeviceCodecs, WriteNothingBeyondTheRawBytes) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  std::vector<Bf16> values = KvLike(run, 7);
  for (Bf16& value : values) value = ToBf16(ToFloat(value) * 999 + 9);  // escapes of any codec
  const cuda::DeviceArray<Bf16> raw(values);
  for (const KvCodecSpec& spec : EveryCodec()) {
    const cuda::DeviceArray<std::byte> encoded(EncodedKvBound(run) + 4 * run.RawBytes());
    const auto used = codec_->Encode(spec, run, {.calibration = &calibration},
                                     std::as_bytes(std::span(raw.data(), raw.size())),
                                     {encoded.data(), encoded.size()});
    ASSERT_TRUE(used.ok()) << used.status();
    const std::vector<std::byte> bytes = encoded.Read();
    const auto beyond = std::span(bytes).subspan(kKvCodecHeaderBytes + run.RawBytes());
    EXPECT_TRUE(std::ranges::all_of(beyond, [](std::byte b) { return b == std::byte{0xff}; }))
        << KvCodecName(spec);
  }
}

TEST_F(DeviceCodecs, ExactElementsThatAreNotFinite) {
  for (const KvCodecSpec& spec : EveryCodec()) {
    std::vector<Bf16> values = KvLike(MlaRun(), 2);
    values[MlaRun().head_dim * 16 - 3].bits = 0xff80;
    const KvCalibration calibration = CalibrationFor(MlaRun());
    ExpectAgreement(spec, MlaRun(), {.calibration = &calibration}, values);
  }
}

// Every change of a payload is refused by both sides, or by none, and then comes out the same.
TEST_F(DeviceCodecs, RefuseWhatTheCpuRefuses) {
  KvRun run = SmallRun();
  run.layers = run.kv_heads = 1;
  const KvCalibration calibration = CalibrationFor(run);
  const KvCodecContext context{.calibration = &calibration, .checksum = false};
  std::vector<Bf16> values = KvLike(run, 5);
  for (size_t i = 0; i < values.size(); i += 97) values[i].bits = 0x1234;  // escapes
  std::mt19937_64 random(6);
  for (const KvCodecSpec& spec : EveryCodec()) {
    const std::vector<std::byte> encoded = EncodeAll(spec, run, context, values);
    int refused = 0;
    for (int i = 0; i < 60; ++i) {
      std::vector<std::byte> changed = encoded;
      const size_t payload = encoded.size() - kKvCodecHeaderBytes;
      if (i % 3 == 0) changed.resize(encoded.size() - 1 - random() % payload);
      if (i % 3 == 1) changed.resize(encoded.size() + 1 + random() % 99);
      const size_t changed_bytes = changed.size() - kKvCodecHeaderBytes;
      if (i % 3 == 2) {
        // Half of the changes hit headers and lists rather than values.
        const size_t at = i % 2 == 0 ? random() % 32 : random() % changed_bytes;
        changed[kKvCodecHeaderBytes + at] ^= static_cast<std::byte>(1u << random() % 8);
      }
      SetPayloadBytes(changed);
      const auto there = DecodeAll(spec, run, context, changed);
      const auto here = Decode(spec, run, context, changed);
      ASSERT_EQ(here.status().code(), there.status().code())
          << KvCodecName(spec) << " " << i << ": " << here.status() << "; " << there.status();
      refused += there.ok() ? 0 : 1;
      if (!there.ok()) continue;
      ASSERT_EQ(WithOneNan(*here), WithOneNan(*there)) << KvCodecName(spec) << " " << i;
    }
    EXPECT_GT(refused, 20) << KvCodecName(spec);
  }
}

TEST_F(DeviceCodecs, RefuseAWrongHeaderAndAWrongChecksum) {
  const KvRun run = SmallRun();
  const std::vector<std::byte> encoded = EncodeAll({KvCodec::kLx16}, run, {}, KvLike(run, 3));
  std::vector<std::byte> changed = encoded;
  changed[kKvCodecHeaderBytes + 20] ^= std::byte{1};  // of a nibble: another value, as valid
  EXPECT_THAT(Message(Decode({KvCodec::kLx16}, run, {}, changed).status()),
              testing::HasSubstr("payload checksum is"));
  changed = encoded;
  changed[9] ^= std::byte{1};
  EXPECT_THAT(Message(Decode({KvCodec::kLx16}, run, {}, changed).status()),
              testing::HasSubstr("header checksum is"));
  KvRun moved = run;
  moved.first_block = 4;
  EXPECT_THAT(Message(Decode({KvCodec::kLx16}, moved, {}, encoded).status()),
              testing::HasSubstr("first_block is 3, expected 4"));
  changed.resize(63);
  EXPECT_THAT(Message(Decode({KvCodec::kLx16}, run, {}, changed).status()),
              testing::HasSubstr("63 bytes, must be 64"));
}

// scripts/gpu-check compares a GPU with these sums.
TEST_F(DeviceCodecs, SumsOfTheCpuAreThoseWrittenDown) {
  const cuda::KvCodecShape shape;
  const KvRun run{.blocks = shape.blocks,
                  .layers = static_cast<uint16_t>(shape.layers),
                  .kv_heads = static_cast<uint16_t>(shape.heads),
                  .block_tokens = static_cast<uint16_t>(shape.slots),
                  .head_dim = static_cast<uint16_t>(shape.dims)};
  for (const cuda::KvCodecCase& c : cuda::KvCodecCases()) {
    const auto spec = ParseKvCodec(c.name);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const std::vector<std::byte> encoded = EncodeAll(*spec, run, {}, cuda::KvCodecValues(shape));
    const auto decoded = DecodeAll(*spec, run, {}, encoded);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const auto payload = std::span(encoded).subspan(kKvCodecHeaderBytes);
    const cuda::KvCodecSums sums{.payload_bytes = static_cast<uint32_t>(payload.size()),
                                 .payload = Crc32c(payload),
                                 .decoded = Crc32c(std::as_bytes(std::span(*decoded)))};
    EXPECT_EQ(sums, c.cpu) << fmt::format("{} {} {:#010x} {:#010x}", c.name, sums.payload_bytes,
                                          sums.payload, sums.decoded);
    EXPECT_LT(sums.payload_bytes, run.RawBytes()) << c.name;
    EXPECT_EQ(cuda::RunKvCodec(c.kind), c.cpu) << c.name;
  }
}

TEST_F(DeviceCodecs, SumAnyBytes) {
  std::mt19937_64 random(8);
  for (const size_t size : {0, 1, 15, 16, 17, 511, 4096, 16384, 16385, 16400, 600001}) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const cuda::DeviceArray<std::byte> device(bytes);
    const auto sum = codec_->Checksum({device.data(), device.size()});
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_EQ(*sum, Crc32c(bytes)) << size;
  }
}

TEST_F(DeviceCodecs, RefuseALargerRunThanTheirScratch) {
  KvRun run = SmallRun();
  run.blocks = 1000;
  const auto used = codec_->Encode({KvCodec::kLx16}, run, {}, {}, {});
  EXPECT_EQ(used.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace penstock
