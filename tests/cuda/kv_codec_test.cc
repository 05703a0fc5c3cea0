#include <gmock/gmock.h>

#include "kernels/cuda/emulator.h"
#include "kvstore/codec_header.h"
#include "kvstore/slab.h"
#include "tests/cuda/kv_codec_fixture.h"

namespace penstock {
namespace {

const KvRun kMla{.blocks = 3,
                 .layers = 2,
                 .kv_heads = 1,
                 .planes = 1,
                 .block_tokens = 16,
                 .head_dim = 576,
                 .rope_dim = 64};

std::vector<KvCodecSpec> Supported() {
  std::vector<KvCodecSpec> specs;
  for (const KvCodecSpec& spec : AllKvCodecs()) {
    if (DeviceKvCodec::Supports(spec)) specs.push_back(spec);
  }
  return specs;
}

std::vector<KvRun> Geometries() {
  KvRun wide = SmallRun(), odd = SmallRun(), one = SmallRun();
  wide.head_dim = 128;
  odd.head_dim = 96;
  odd.block_tokens = 32;
  one.blocks = one.layers = one.kv_heads = 1;
  return {SmallRun(), wide, odd, one, kMla};
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
  for (const auto order : cuda::emulator::kOrders) {
    const cuda::emulator::ScopedSchedule schedule(cuda::emulator::Copies::kLate, order);
    for (const KvRun& run : Geometries()) {
      const KvCalibration calibration = CalibrationFor(run);
      for (const KvCodecSpec& spec : Supported()) {
        ExpectAgreement(spec, run, {.calibration = &calibration}, KvLike(run, 1));
      }
    }
  }
}

TEST_F(DeviceCodecs, LosslessTilesOfEveryKind) {
  // Values of so many exponents that a tile has few escapes, has many, or is stored.
  KvRun run = SmallRun();
  run.blocks = 9;
  for (const int spread : {1, 14, 16, 17, 20, 40, 250}) {
    std::mt19937_64 random(spread);
    std::vector<Bf16> values(run.Elements());
    for (Bf16& value : values) {
      const uint64_t draw = random();
      const uint64_t exponent = draw % 16 != 0 ? 100 + draw / 16 % 10 : draw / 256 % spread;
      value.bits = static_cast<uint16_t>((draw >> 48 & 0x807f) | exponent << 7);
    }
    values[7].bits = 0x7fc1;
    values[5000].bits = 0xff80;
    for (const KvCodecSpec& spec : {KvCodecSpec{KvCodec::kLx16}, KvCodecSpec{KvCodec::kLxr}}) {
      if (DeviceKvCodec::Supports(spec)) ExpectAgreement(spec, run, {}, values);
    }
  }
}

TEST_F(DeviceCodecs, RandomBitsAreStored) {
  const KvRun run = SmallRun();
  std::mt19937_64 random(4);
  std::vector<Bf16> values(run.Elements());
  for (Bf16& value : values) value.bits = static_cast<uint16_t>(random());
  const KvCalibration calibration = CalibrationFor(run);
  for (const KvCodecSpec& spec : Supported()) {
    ExpectAgreement(spec, run, {.calibration = &calibration}, values);
    const auto encoded = Encode(spec, run, {.calibration = &calibration}, values);
    EXPECT_EQ(encoded.size(), kKvCodecHeaderBytes + run.RawBytes()) << KvCodecName(spec);
  }
}

TEST_F(DeviceCodecs, ConstantsAndTheSmallest) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  for (const KvCodecSpec& spec : Supported()) {
    for (const uint16_t bits : {0x0000, 0x0001, 0x8000, 0x3f80, 0x0080, 0x77ff}) {
      const std::vector<Bf16> values(run.Elements(), Bf16{bits});
      ExpectAgreement(spec, run, {.calibration = &calibration, .checksum = bits != 1}, values);
    }
  }
}

TEST_F(DeviceCodecs, ValuesThatNoLossyCodecHolds) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  for (const KvCodecSpec& spec : Supported()) {
    for (const uint16_t bits : {0x7fc1, 0xff80, 0x7f00}) {
      std::vector<Bf16> values = KvLike(run, 2);
      values[values.size() - 777].bits = bits;
      ExpectAgreement(spec, run, {.calibration = &calibration}, values);
    }
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
  for (const KvCodecSpec& spec : Supported()) {
    const std::vector<std::byte> encoded = EncodeAll(spec, run, context, values);
    int refused = 0;
    for (int i = 0; i < 60; ++i) {
      std::vector<std::byte> changed = encoded;
      const size_t payload = encoded.size() - kKvCodecHeaderBytes;
      if (i % 3 == 0) changed.resize(encoded.size() - 1 - random() % payload);
      if (i % 3 == 1) changed.resize(encoded.size() + 1 + random() % 99);
      const size_t changed_bytes = changed.size() - kKvCodecHeaderBytes;
      if (i % 3 == 2) {
        // Of heads and lists rather than of values.
        const size_t at = i % 2 == 0 ? random() % 32 : random() % changed_bytes;
        changed[kKvCodecHeaderBytes + at] ^= static_cast<std::byte>(1u << random() % 8);
      }
      auto header = DecodeKvCodecHeader(std::span(encoded).first(kKvCodecHeaderBytes));
      ASSERT_TRUE(header.ok());
      header->payload_bytes = static_cast<uint32_t>(changed_bytes);
      const KvCodecHeaderBytes bytes = EncodeKvCodecHeader(*header);
      std::copy(bytes.begin(), bytes.end(), changed.begin());
      const auto there = DecodeAll(spec, run, context, changed);
      const auto here = Decode(spec, run, context, changed);
      ASSERT_EQ(here.status().code(), there.status().code())
          << KvCodecName(spec) << " " << i << ": " << here.status() << "; " << there.status();
      refused += there.ok() ? 0 : 1;
      if (!there.ok()) continue;
      ASSERT_EQ(BitsOf(*here), BitsOf(*there)) << KvCodecName(spec) << " " << i;
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
