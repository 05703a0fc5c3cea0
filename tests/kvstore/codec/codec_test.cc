#include "kvstore/codec/codec.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <numeric>

#include "kvstore/codec/codec_header.h"
#include "lab/fake/temp_folder.h"
#include "tests/kvstore/codec/codec_fixture.h"

namespace penstock {
namespace {

using testing::HasSubstr;

TEST(KvRun, OfPagesOfLatentsHasOnePlaneAndAKeyThatStays) {
  const KvLayout layout{.layers = 2, .kv_heads = 1, .head_dim = 576, .latent_rope_dim = 64};
  const KvRun run = RunOf(layout, 0, 3, 0, 2);
  EXPECT_EQ(run, MlaRun());
  EXPECT_EQ(run.RawBytes(), 3 * layout.PayloadBytes());
}

class EveryCodec : public testing::TestWithParam<KvCodecSpec> {};

TEST_P(EveryCodec, GivesTheSameBytesOnEveryInstructionSet) {
  for (const KvRun& run : Geometries()) {
    const KvCalibration calibration = CalibrationFor(run);
    const KvCodecContext context{.calibration = &calibration};
    const std::vector<Bf16> values = KvLike(run, 1);
    std::vector<std::byte> encoded;
    std::vector<uint16_t> decoded;
    for (const Isa isa : SupportedIsas()) {
      const ScopedIsa scope(isa);
      const std::vector<std::byte> here = EncodeAll(GetParam(), run, context, values);
      const auto back = DecodeAll(GetParam(), run, context, here);
      ASSERT_TRUE(back.ok()) << back.status();
      if (isa == Isa::kPortable) {
        encoded = here;
        decoded = BitsOf(*back);
      }
      EXPECT_EQ(here, encoded) << IsaName(isa) << " head_dim " << run.head_dim;
      EXPECT_EQ(BitsOf(*back), decoded) << IsaName(isa) << " head_dim " << run.head_dim;
    }
    EXPECT_LE(encoded.size(), kKvCodecHeaderBytes + run.RawBytes());
  }
}

TEST_P(EveryCodec, StoresWhatIsNotFinite) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  std::vector<Bf16> values = KvLike(run, 2);
  values[777].bits = 0x7fc1;  // NaN with a payload
  values[778].bits = 0xff80;  // -infinity
  values[779].bits = 0x7f00;  // 2^127, whose sums overflow
  const KvCodecContext context{.calibration = &calibration};
  const auto back =
      DecodeAll(GetParam(), run, context, EncodeAll(GetParam(), run, context, values));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(BitsOf(*back), BitsOf(values));
}

TEST_P(EveryCodec, KeepsZerosAndConstantsAndTheSmallest) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  const KvCodecContext context{.calibration = &calibration};
  for (const uint16_t bits : {0x0000, 0x0001, 0x3f80, 0x0080}) {
    const std::vector<Bf16> values(run.Elements(), Bf16{bits});
    const auto back =
        DecodeAll(GetParam(), run, context, EncodeAll(GetParam(), run, context, values));
    ASSERT_TRUE(back.ok()) << back.status();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(ToFloat((*back)[i]), ToFloat(values[i]), 1.5) << i;  // cgx5: half a step
      if (GetParam().codec == KvCodec::kI8 || GetParam().codec == KvCodec::kK8v4) {
        ASSERT_NEAR(ToFloat((*back)[i]), ToFloat(values[i]), 1e-3) << i;
      }
    }
  }
}

TEST_P(EveryCodec, NamesTheFieldOfAWrongHeader) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  const KvCodecContext context{.calibration = &calibration};
  const std::vector<std::byte> encoded = EncodeAll(GetParam(), run, context, KvLike(run, 3));
  const struct {
    const char* name;
    uint16_t KvRun::*field;
  } fields[] = {{"first_layer", &KvRun::first_layer}, {"rope_dim", &KvRun::rope_dim}};
  for (const auto& [name, field] : fields) {
    KvRun other = run;
    other.*field = static_cast<uint16_t>(other.*field == 0 ? 32 : other.*field - 1);
    const KvCalibration fitting = CalibrationFor(run);
    const auto back = DecodeAll(GetParam(), other, {.calibration = &fitting}, encoded);
    ASSERT_FALSE(back.ok());
    EXPECT_THAT(Message(back.status()), HasSubstr(name)) << back.status();
  }
  KvRun moved = run;
  moved.first_block = 4;
  EXPECT_THAT(Message(DecodeAll(GetParam(), moved, context, encoded).status()),
              HasSubstr("first_block is 3, expected 4"));
  const KvCodecSpec other =
      GetParam() == KvCodecSpec{} ? KvCodecSpec{KvCodec::kLxr} : KvCodecSpec{};
  EXPECT_THAT(Message(DecodeAll(other, run, context, encoded).status()),
              HasSubstr("codec is " + KvCodecName(GetParam())));
}

TEST_P(EveryCodec, NoticesEveryFlippedBitAndEveryMissingByte) {
  KvRun run = SmallRun();
  run.blocks = run.layers = run.kv_heads = 1;
  const KvCalibration calibration = CalibrationFor(run);
  const KvCodecContext context{.calibration = &calibration};
  const std::vector<std::byte> encoded = EncodeAll(GetParam(), run, context, KvLike(run, 4));
  for (size_t i = 0; i < encoded.size(); ++i) {
    std::vector<std::byte> damaged = encoded;
    damaged[i] ^= std::byte{1} << (i % 8);
    EXPECT_EQ(DecodeAll(GetParam(), run, context, damaged).status().code(),
              absl::StatusCode::kDataLoss)
        << i;
  }
  for (size_t size = 0; size < encoded.size(); size += 7) {
    EXPECT_EQ(DecodeAll(GetParam(), run, context, std::span(encoded).first(size)).status().code(),
              absl::StatusCode::kDataLoss);
  }
}

// Without the checksum only what cannot be decoded is an error; nothing may be touched out of
// bounds (sanitizers watch).
TEST_P(EveryCodec, SurvivesDamageWithoutItsChecksum) {
  KvRun run = SmallRun();
  run.protected_first = 1;
  const KvCalibration calibration = CalibrationFor(run);
  const KvCodecContext context{.calibration = &calibration, .checksum = false};
  const std::vector<std::byte> encoded = EncodeAll(GetParam(), run, context, KvLike(run, 5));
  std::mt19937_64 engine(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::byte> damaged = encoded;
    for (int i = 0; i < 8; ++i) {
      const size_t at = kKvCodecHeaderBytes + engine() % (damaged.size() - kKvCodecHeaderBytes);
      damaged[at] = static_cast<std::byte>(engine());
    }
    const auto back = DecodeAll(GetParam(), run, context, damaged);
    EXPECT_TRUE(back.ok() || back.status().code() == absl::StatusCode::kDataLoss);
  }
}

TEST_P(EveryCodec, KeepsRopeDimensionsExactly) {
  const KvRun run = MlaRun();
  const KvCalibration calibration = CalibrationFor(run);
  const KvCodecContext context{.calibration = &calibration};
  const std::vector<Bf16> values = KvLike(run, 6);
  const auto back =
      DecodeAll(GetParam(), run, context, EncodeAll(GetParam(), run, context, values));
  ASSERT_TRUE(back.ok()) << back.status();
  for (size_t row = 0; row < run.Elements() / run.head_dim; ++row) {
    for (size_t d = 512; d < 576; ++d) {
      ASSERT_EQ((*back)[row * 576 + d].bits, values[row * 576 + d].bits) << row << " " << d;
    }
  }
}

TEST_P(EveryCodec, IsFoundByItsName) {
  const auto spec = ParseKvCodec(KvCodecName(GetParam()));
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(*spec, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Codec, EveryCodec, testing::ValuesIn(AllKvCodecs()),
                         [](const auto& instance) { return KvCodecName(instance.param); });

class LosslessCodec : public testing::TestWithParam<KvCodecSpec> {};

TEST_P(LosslessCodec, GivesBackEveryBitPattern) {
  KvRun run = SmallRun();
  run.blocks = 16;  // 65,536 elements
  run.kv_heads = 1;
  std::vector<std::vector<Bf16>> cases;
  std::vector<Bf16> values(run.Elements());
  for (size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<uint16_t>(i);
  cases.push_back(values);
  std::mt19937_64 engine(7);
  std::shuffle(values.begin(), values.end(), engine);
  cases.push_back(values);
  cases.push_back(KvLike(run, 8));
  for (size_t i = 0; i < values.size(); i += 100) cases.back()[i] = values[i];
  cases.emplace_back(run.Elements());                // zeros
  cases.emplace_back(run.Elements(), Bf16{0x8000});  // negative zeros
  cases.push_back(KvLike(run, 9));
  std::fill_n(cases.back().begin() + 5000, 20000, Bf16{});  // a tail that nobody has written
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa scope(isa);
    for (const std::vector<Bf16>& expected : cases) {
      const std::vector<std::byte> encoded = EncodeAll(GetParam(), run, {}, expected);
      const auto back = DecodeAll(GetParam(), run, {}, encoded);
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(BitsOf(*back), BitsOf(expected)) << IsaName(isa);
      EXPECT_LE(encoded.size(), kKvCodecHeaderBytes + run.RawBytes());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codec, LosslessCodec,
                         testing::Values(KvCodecSpec{KvCodec::kRaw}, KvCodecSpec{KvCodec::kLx16},
                                         KvCodecSpec{KvCodec::kLxr}),
                         [](const auto& instance) { return KvCodecName(instance.param); });

double BitsPerElement(std::string_view name, const KvRun& run, const KvCodecContext& context,
                      double* error = nullptr) {
  const KvCodecSpec spec = *ParseKvCodec(name);
  const std::vector<Bf16> values = KvLike(run, 10);
  const std::vector<std::byte> encoded = EncodeAll(spec, run, context, values);
  const auto back = DecodeAll(spec, run, context, encoded);
  EXPECT_TRUE(back.ok()) << back.status();
  if (error != nullptr) *error = RelativeError(values, *back);
  return 8.0 * static_cast<double>(encoded.size()) / static_cast<double>(run.Elements());
}

TEST(KvCodecTest, SizesAndErrorsAreThoseOfTheTable) {
  KvRun run = SmallRun();
  run.blocks = 16;
  run.head_dim = 128;
  const KvCalibration calibration = CalibrationFor(run);
  const KvCodecContext context{.calibration = &calibration};
  const struct {
    const char* name;
    double bits_max, error_max;
  } rows[] = {{"lx16", 12.1, 0},    {"lxr", 11.4, 0},       {"i8", 8.26, 0.011},
              {"f8", 8.13, 0.031},  {"f8e5m2", 8.13, 0.06}, {"k8v4", 6.26, 0.15},
              {"i4r", 4.26, 0.16},  {"cgx1", 3.9, 0.08},    {"cgx2", 3.5, 0.105},
              {"cgx3", 3.25, 0.12}, {"cgx4", 2.9, 0.18},    {"cgx5", 2.1, 0.35},
              {"kv2", 2.85, 0.5}};
  double last_error = -1;
  for (const auto& row : rows) {
    double error = 0;
    const double bits = BitsPerElement(row.name, run, context, &error);
    EXPECT_LE(bits, row.bits_max) << row.name;
    EXPECT_LE(error, row.error_max) << row.name;
    if (row.name[0] != 'c') continue;
    EXPECT_GT(error, last_error) << row.name;
    last_error = error;
  }
}

TEST(KvCodecTest, CgxIsOffByHalfAStepAtMost) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  const KvCodecContext context{.calibration = &calibration};
  std::vector<Bf16> values = KvLike(run, 11);
  std::mt19937_64 engine(11);
  for (size_t i = 0; i < values.size(); i += 50) values[i] = ToBf16(ToFloat(values[i]) * 40);
  for (uint8_t level = 1; level <= kCgxLevels; ++level) {
    const KvCodecSpec spec{KvCodec::kCgx, level};
    const auto back = DecodeAll(spec, run, context, EncodeAll(spec, run, context, values));
    ASSERT_TRUE(back.ok()) << back.status();
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t layer = i / run.LayerElements() % run.layers;
      const size_t plane = i / run.PieceElements() % 2;
      const float step = calibration.step(level, run.first_layer + layer, plane);
      const float x = ToFloat(values[i]);
      ASSERT_LE(std::fabs(x - ToFloat((*back)[i])), step * 0.502f + std::fabs(x) / 250 + 0.002f)
          << i;
    }
  }
}

TEST(KvCodecTest, ProtectedBlocksAreThoseOfI8) {
  KvRun run = SmallRun();
  run.protected_first = 1;
  run.protected_last = 2;
  const KvCalibration calibration = CalibrationFor(run);
  const KvCodecContext context{.calibration = &calibration};
  const std::vector<Bf16> values = KvLike(run, 12);
  const KvCodecSpec i8{KvCodec::kI8};
  const auto near = DecodeAll(i8, run, context, EncodeAll(i8, run, context, values));
  const size_t block = run.Elements() / run.blocks;
  for (const char* name : {"cgx5", "kv2"}) {
    const KvCodecSpec spec = *ParseKvCodec(name);
    const auto back = DecodeAll(spec, run, context, EncodeAll(spec, run, context, values));
    ASSERT_TRUE(back.ok()) << back.status();
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t b = i / block;
      if (b >= 1 && b < 3) continue;
      ASSERT_EQ((*back)[i].bits, (*near)[i].bits) << name << " " << i;
    }
    EXPECT_NE(BitsOf(*back), BitsOf(*near));
  }
}

TEST(KvCodecTest, RawBytesThatClaimToBeCodedAreRefused) {
  KvRun run = SmallRun();
  run.head_dim = 1000;  // which nothing but raw and the lossless take
  const KvCodecHeaderBytes header = EncodeKvCodecHeader({.run = run, .payload_bytes = 64});
  std::vector<std::byte> encoded(header.begin(), header.end());
  encoded.resize(encoded.size() + 64);
  EXPECT_THAT(Message(DecodeAll({KvCodec::kRaw}, run, {}, encoded).status()), HasSubstr("flags"));
}

TEST(KvCodecTest, TellsWhatACodecCannotTake) {
  KvRun run = SmallRun();
  run.head_dim = 60;
  EXPECT_TRUE(CheckKvRun({KvCodec::kLx16}, run, {}).ok());
  EXPECT_THAT(Message(CheckKvRun({KvCodec::kI8}, run, {})), HasSubstr("head_dim 60"));
  run = SmallRun();
  EXPECT_THAT(Message(CheckKvRun({KvCodec::kCgx, 1}, run, {})), HasSubstr("penstock calibrate"));
  const KvCalibration calibration = CalibrationFor(run);
  run.kv_heads = 4;
  EXPECT_THAT(Message(CheckKvRun({KvCodec::kCgx, 1}, run, {.calibration = &calibration})),
              HasSubstr("kv_heads 2"));
  run.blocks = 0;
  EXPECT_FALSE(CheckKvRun({KvCodec::kRaw}, run, {}).ok());
  EXPECT_THAT(Message(ParseKvCodec("lz4").status()), HasSubstr("allowed are raw, lx16"));
}

TEST(KvCodecTest, AnotherCalibrationIsRefused) {
  const KvRun run = SmallRun();
  const KvCalibration calibration = CalibrationFor(run);
  std::vector<std::byte> bytes = calibration.Serialise();
  const auto same = KvCalibration::Parse(bytes);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->id(), calibration.id());
  const KvCodecSpec spec{KvCodec::kCgx, 3};
  const std::vector<std::byte> encoded =
      EncodeAll(spec, run, {.calibration = &calibration}, KvLike(run, 13));
  EXPECT_TRUE(DecodeAll(spec, run, {.calibration = &*same}, encoded).ok());
  KvRun larger = run;
  larger.layers = 5;
  const KvCalibration other = CalibrationFor(larger);
  EXPECT_THAT(Message(DecodeAll(spec, run, {.calibration = &other}, encoded).status()),
              HasSubstr("calibration is"));
}

TEST(KvCalibrationTest, ParseNamesWhatIsWrong) {
  const KvCalibration calibration = CalibrationFor(SmallRun());
  const std::vector<std::byte> bytes = calibration.Serialise();
  for (size_t i = 0; i < bytes.size(); i += i < 32 ? 1 : 101) {
    std::vector<std::byte> damaged = bytes;
    damaged[i] ^= std::byte{4};
    EXPECT_FALSE(KvCalibration::Parse(damaged).ok()) << i;
  }
  EXPECT_FALSE(KvCalibration::Parse(std::span(bytes).first(bytes.size() - 1)).ok());
  EXPECT_THAT(Message(KvCalibration::Load("/nonexistent").status()),
              HasSubstr("penstock calibrate"));
}

TEST(KvCalibrationTest, LiesInADirectoryOrBesideAGgufFile) {
  const TempFolder folder;
  const KvCalibration calibration = CalibrationFor(SmallRun());
  for (const std::string& model : {folder.path(), folder.path() + "/m.gguf"}) {
    EXPECT_TRUE(absl::IsNotFound(KvCalibration::Load(model).status())) << model;
    ASSERT_TRUE(calibration.Save(model).ok()) << model;
    EXPECT_EQ(KvCalibration::Load(model)->id(), calibration.id()) << model;
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/m.gguf.kv_calibration.bin"));
}

}  // namespace
}  // namespace penstock
