#include "model/gguf/file/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/model/gguf/gguf_writer.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GgufFileTest, ReadsValuesOfEveryType) {
  GgufWriter writer;
  writer.Number("u8", GgufType::kU8, uint8_t{200})
      .Number("i8", GgufType::kI8, int8_t{-100})
      .Number("u16", GgufType::kU16, uint16_t{60000})
      .Number("i16", GgufType::kI16, int16_t{-30000})
      .U32("u32", 4'000'000'000)
      .Number("i32", GgufType::kI32, int32_t{-2'000'000'000})
      .Number("u64", GgufType::kU64, uint64_t{1} << 62)
      .Number("huge", GgufType::kU64, std::numeric_limits<uint64_t>::max())
      .Number("i64", GgufType::kI64, int64_t{-1} << 62)
      .F32("f32", 1.5f)
      .Number("f64", GgufType::kF64, 2.25)
      .Bool("yes", true)
      .Bool("no", false)
      .Number("neither", GgufType::kBool, uint8_t{2})
      .Text("text", std::string("a\0b", 3))
      .I32s("numbers", {3, -4, 5})
      .Texts("texts", {"x", "", "yz"})
      .F32s("none", {});
  const std::string bytes = writer.Bytes();
  const auto file = ParseWritten(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto integer = [&](std::string_view key) { return file->Find(key)->Int(); };
  EXPECT_EQ(integer("u8"), 200);
  EXPECT_EQ(integer("i8"), -100);
  EXPECT_EQ(integer("u16"), 60000);
  EXPECT_EQ(integer("i16"), -30000);
  EXPECT_EQ(integer("u32"), 4'000'000'000);
  EXPECT_EQ(integer("i32"), -2'000'000'000);
  EXPECT_EQ(integer("u64"), int64_t{1} << 62);
  EXPECT_EQ(integer("huge"), std::nullopt);
  EXPECT_EQ(integer("i64"), int64_t{-1} << 62);
  EXPECT_EQ(integer("f32"), std::nullopt);
  EXPECT_EQ(integer("yes"), std::nullopt);
  EXPECT_EQ(file->Find("f32")->Float(), 1.5);
  EXPECT_EQ(file->Find("f64")->Float(), 2.25);
  EXPECT_EQ(file->Find("i8")->Float(), -100);
  EXPECT_EQ(file->Find("text")->Float(), std::nullopt);
  EXPECT_EQ(file->Find("yes")->Bool(), true);
  EXPECT_EQ(file->Find("no")->Bool(), false);
  EXPECT_EQ(file->Find("neither")->Bool(), std::nullopt);
  EXPECT_EQ(file->Find("u8")->Bool(), std::nullopt);
  EXPECT_THAT(file->Find("text")->strings, ElementsAre(std::string_view("a\0b", 3)));
  EXPECT_FALSE(file->Find("text")->is_array);
  const GgufValue& numbers = *file->Find("numbers");
  EXPECT_TRUE(numbers.is_array);
  ASSERT_EQ(numbers.count, 3u);
  EXPECT_EQ(numbers.Int(1), -4);
  EXPECT_THAT(file->Find("texts")->strings, ElementsAre("x", "", "yz"));
  EXPECT_EQ(file->Find("none")->count, 0u);
  EXPECT_EQ(file->Find("absent"), nullptr);
}

TEST(GgufFileTest, ReadsTensorsOutermostExtentFirst) {
  GgufWriter writer;
  writer.Tensor("z", "F32", {3, 5}, 'z').Tensor("a", "Q4_K", {2, 512}, 'a');
  const std::string bytes = writer.Bytes();
  const auto file = ParseWritten(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors.size(), 2u);
  const GgufTensor& a = file->tensors[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.type->name, "Q4_K");
  EXPECT_THAT(a.shape, ElementsAre(2, 512));
  EXPECT_EQ(a.bytes.size(), 4u * 144);
  EXPECT_EQ(a.bytes.back(), std::byte{'a'});
  EXPECT_EQ(a.end - a.begin, a.bytes.size());
  EXPECT_EQ(file->FindTensor("z")->begin, file->data_begin);
  EXPECT_EQ(file->FindTensor("z")->bytes.size(), 60u);
  EXPECT_EQ(file->data_begin % 32, 0u);
  EXPECT_EQ(file->FindTensor("y"), nullptr);
}

TEST(GgufFileTest, KnowsTheBlocksOfEveryType) {
  struct Block {
    uint32_t id;
    const char* name;
    int64_t elements;
    int64_t bytes;
  };
  // As the gguf package has them (GGML_QUANT_SIZES).
  for (const Block& block :
       {Block{0, "F32", 1, 4}, Block{1, "F16", 1, 2}, Block{2, "Q4_0", 32, 18},
        Block{3, "Q4_1", 32, 20}, Block{6, "Q5_0", 32, 22}, Block{7, "Q5_1", 32, 24},
        Block{8, "Q8_0", 32, 34}, Block{12, "Q4_K", 256, 144}, Block{13, "Q5_K", 256, 176},
        Block{14, "Q6_K", 256, 210}, Block{20, "IQ4_NL", 32, 18}, Block{23, "IQ4_XS", 256, 136},
        Block{30, "BF16", 1, 2}, Block{39, "MXFP4", 32, 17}}) {
    const GgmlType* type = FindGgmlType(block.id);
    ASSERT_NE(type, nullptr) << block.name;
    EXPECT_EQ(type, FindGgmlType(block.name));
    EXPECT_EQ(type->name, block.name);
    EXPECT_EQ(type->block_elements, block.elements) << block.name;
    EXPECT_EQ(type->block_bytes, block.bytes) << block.name;
  }
  EXPECT_EQ(FindGgmlType(10), nullptr);
  EXPECT_EQ(FindGgmlType("Q2_K"), nullptr);
  EXPECT_EQ(DescribeGgmlType(10), "Q2_K (10)");
  EXPECT_EQ(DescribeGgmlType(99), "99");
}

TEST(GgufFileTest, VersionsAndAlignments) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string bytes = GgufWriter(version).Tensor("a", "F16", {4}).Bytes();
    EXPECT_EQ(ParseWritten(bytes)->version, version);
  }
  const std::string aligned =
      GgufWriter().Align(256).Tensor("a", "F16", {4}).Tensor("b", "F16", {4}).Bytes();
  const auto file = ParseWritten(aligned);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->FindTensor("b")->begin, file->FindTensor("a")->begin + 256);
  EXPECT_EQ(file->data_begin % 256, 0u);
  const std::string empty = GgufWriter().Bytes();
  EXPECT_TRUE(ParseWritten(empty)->tensors.empty());
}

// Every prefix of a good file is an error, never a crash or a success.
TEST(GgufFileTest, EveryTruncationIsAnError) {
  const std::string whole = GgufWriter()
                                .Text("general.architecture", "llama")
                                .Texts("tokens", {"a", "bc"})
                                .F32s("scores", {1, 2})
                                .TensorData("t", 0, {2, 4}, std::string(32, 'x'))
                                .Bytes();
  ASSERT_TRUE(ParseWritten(whole).ok());
  for (size_t size = 0; size < whole.size(); size++) {
    const std::string cut = whole.substr(0, size);
    const absl::Status status = ParseWritten(cut).status();
    ASSERT_FALSE(status.ok()) << size;
    ASSERT_TRUE(size < 4 || absl::IsDataLoss(status)) << size << " " << status;
  }
  const std::string cut = whole.substr(0, whole.size() - 1);
  EXPECT_THAT(Message(ParseWritten(cut).status()),
              AllOf(HasSubstr("m.gguf: tensor \"t\" ends at byte 32"), HasSubstr("truncated")));
}

std::string Length(uint64_t length) {
  return {reinterpret_cast<const char*>(&length), sizeof(length)};
}
std::string Word(uint32_t word) { return {reinterpret_cast<const char*>(&word), sizeof(word)}; }

struct RefusedFile {
  const char* name;
  std::string bytes;
  const char* error;
};

class GgufRefusalTest : public testing::TestWithParam<RefusedFile> {};

TEST_P(GgufRefusalTest, NamesTheFileAndTheKeyOrTensor) {
  const auto parsed = ParseWritten(GetParam().bytes);
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(Message(parsed.status()), AllOf(HasSubstr("m.gguf"), HasSubstr(GetParam().error)));
  EXPECT_LT(Message(parsed.status()).size(), 400u);
}

std::string Header(uint64_t tensors, uint64_t pairs) {
  return "GGUF" + Word(3) + Length(tensors) + Length(pairs);
}

INSTANTIATE_TEST_SUITE_P(
    Files, GgufRefusalTest,
    testing::Values(
        RefusedFile{"safetensors", Length(2) + "{}", "is no GGUF file"},
        RefusedFile{"version_1", GgufWriter(1).Bytes(), "GGUF version is 1, allowed are 2 and 3"},
        RefusedFile{"big_endian", GgufWriter(0x03000000).Bytes(), "GGUF version is 50331648"},
        RefusedFile{"tensors", Header(65537, 0), "has 65537 tensors, the limit is 65536"},
        RefusedFile{"pairs", Header(0, uint64_t{1} << 63), "9223372036854775808 metadata pairs"},
        RefusedFile{"key_length", Header(0, 1) + Length(uint64_t{1} << 40),
                    "metadata pair 0: a string at byte 32 has 1099511627776 bytes"},
        RefusedFile{"value_type", GgufWriter().Raw("k", 13, "").Bytes(),
                    "key \"k\": value type is 13, allowed are 0 to 12"},
        RefusedFile{"text_length", GgufWriter().Raw("k", 8, Length(UINT64_MAX)).Bytes(),
                    "key \"k\": a string at byte"},
        RefusedFile{"array_count", GgufWriter().BeginArray("k", GgufType::kU8, 1 << 25).Bytes(),
                    "key \"k\": is an array of 33554432 elements, the limit is 16777216"},
        RefusedFile{"array_overflow",
                    GgufWriter().BeginArray("k", GgufType::kF64, UINT64_MAX / 8 + 2).Bytes(),
                    "key \"k\": is an array of 2305843009213693953 elements"},
        RefusedFile{"array_cut", GgufWriter().BeginArray("k", GgufType::kF64, 1 << 20).Bytes(),
                    "key \"k\": needs 8388608 bytes"},
        RefusedFile{"texts_cut", GgufWriter().BeginArray("k", GgufType::kString, 1 << 24).Bytes(),
                    "key \"k\": needs 8 bytes"},
        RefusedFile{"array_of_arrays", GgufWriter().BeginArray("k", GgufType::kArray, 1).Bytes(),
                    "key \"k\": is an array of arrays"},
        RefusedFile{"key_twice", GgufWriter().U32("k", 1).U32("k", 1).Bytes(),
                    "key \"k\" appears twice"},
        RefusedFile{"alignment_zero", GgufWriter().U32("general.alignment", 0).Bytes(),
                    "general.alignment is 0, allowed is a power of two from 8 to 65536"},
        RefusedFile{"alignment_odd", GgufWriter().U32("general.alignment", 24).Bytes(),
                    "general.alignment is 24"},
        RefusedFile{"alignment_text", GgufWriter().Text("general.alignment", "32").Bytes(),
                    "general.alignment is 0"},
        RefusedFile{"no_extents", GgufWriter().TensorHeader("t", 0, {}, 0).Bytes(),
                    "tensor \"t\": has 0 extents, allowed are 1 to 4"},
        RefusedFile{"extents", GgufWriter().TensorHeader("t", 0, {1, 1, 1, 1, 1}, 0).Bytes(),
                    "tensor \"t\": has 5 extents"},
        RefusedFile{"extent_zero", GgufWriter().TensorHeader("t", 0, {4, 0}, 0).Bytes(),
                    "tensor \"t\": extent 0 is 0"},
        RefusedFile{"elements",
                    GgufWriter().TensorHeader("t", 0, {1 << 20, 1 << 20, 1 << 20}, 0).Bytes(),
                    "extent 2 is 1048576; extents are positive, and their product is at most 2^48"},
        RefusedFile{"extent_huge", GgufWriter().TensorHeader("t", 0, {UINT64_MAX}, 0).Bytes(),
                    "extent 0 is 18446744073709551615"},
        RefusedFile{"type", GgufWriter().TensorHeader("t", 17, {256}, 0).Bytes(),
                    "tensor \"t\": type is IQ2_XS (17), allowed are F32, F16, Q4_0"},
        RefusedFile{"type_unknown", GgufWriter().TensorHeader("t", 4, {256}, 0).Bytes(),
                    "tensor \"t\": type is 4, allowed are"},
        RefusedFile{"part_of_a_block", GgufWriter().TensorHeader("t", 12, {2, 320}, 0).Bytes(),
                    "rows of 320 elements are not whole blocks of 256 (Q4_K)"},
        RefusedFile{"offset", GgufWriter().TensorHeader("t", 0, {1}, 4).Bytes(),
                    "offset is 4, allowed are multiples of general.alignment (32)"},
        RefusedFile{"offset_huge", GgufWriter().TensorHeader("t", 0, {16}, UINT64_MAX - 31).Bytes(),
                    "tensor \"t\": offset is 18446744073709551584"},
        RefusedFile{"beyond", GgufWriter().TensorHeader("t", 0, {1}, 1 << 20).Bytes(),
                    "tensor \"t\" ends at byte 1048580 of the data, the file has 0"},
        RefusedFile{"overlap",
                    GgufWriter().Tensor("t", "F32", {16}).TensorHeader("u", 0, {1}, 32).Bytes(),
                    "tensor \"u\": offset is 32, but another tensor's bytes end at 64"},
        RefusedFile{"tensor_twice",
                    GgufWriter().Tensor("t", "F32", {1}).Tensor("t", "F32", {1}).Bytes(),
                    "tensor \"t\" appears twice"},
        RefusedFile{"escape_codes", GgufWriter().TensorHeader("\x1b[31m", 99, {1}, 0).Bytes(),
                    "tensor \"?[31m\""}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace penstock
