#include "model/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/checkpoint/safetensors_writer.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<SafetensorsHeader> Parse(const std::string& bytes) {
  return ParseSafetensors(std::as_bytes(std::span(bytes)), "m.safetensors");
}

TEST(SafetensorsTest, ReadsTensorsInAnyOrderOfOffsets) {
  const std::string header = R"({"__metadata__":{"format":"pt","note":"x"},)"
                             R"("z":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
                             R"("a":{"data_offsets":[16,24],"shape":[],"dtype":"I64"},)"
                             R"("empty":{"dtype":"F32","shape":[4,0],"data_offsets":[16,16]},)"
                             R"("f":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}   )";
  const auto parsed = Parse(SafetensorsBytes(header, 24));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->tensors.size(), 4u);
  EXPECT_EQ(parsed->data_begin, 8 + header.size());
  EXPECT_EQ(parsed->tensors[0].name, "a");
  EXPECT_EQ(parsed->tensors[0].begin, parsed->data_begin + 16);
  EXPECT_EQ(parsed->tensors[0].end, parsed->data_begin + 24);
  EXPECT_TRUE(parsed->tensors[0].shape.empty());
  EXPECT_EQ(parsed->tensors[3].name, "z");
  EXPECT_EQ(parsed->tensors[3].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(parsed->tensors[3].dtype, "BF16");
}

TEST(SafetensorsTest, AFileMayHaveNoTensors) { EXPECT_TRUE(Parse(SafetensorsBytes("{}", 0)).ok()); }

// Every prefix of a good file is an error, never a crash or a success.
TEST(SafetensorsTest, EveryTruncationIsAnError) {
  const std::string whole = SafetensorsBytes({{"a", {2, 2}}, {"b", {3}, "BF16"}});
  ASSERT_TRUE(Parse(whole).ok());
  for (size_t size = 0; size < whole.size(); size++) {
    const auto parsed = Parse(whole.substr(0, size));
    ASSERT_TRUE(absl::IsDataLoss(parsed.status())) << size << " " << parsed.status();
  }
  EXPECT_THAT(Message(Parse(whole.substr(0, whole.size() - 1)).status()),
              AllOf(HasSubstr("m.safetensors"), HasSubstr("tensor \"b\""), HasSubstr("truncated")));
}

struct RefusedHeader {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* error;
};

class SafetensorsRefusalTest : public testing::TestWithParam<RefusedHeader> {};

TEST_P(SafetensorsRefusalTest, NamesTheTensorAndTheField) {
  const auto parsed = Parse(SafetensorsBytes(GetParam().header, GetParam().data_bytes));
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(Message(parsed.status()),
              AllOf(HasSubstr("m.safetensors"), HasSubstr(GetParam().error)));
}

INSTANTIATE_TEST_SUITE_P(
    Headers, SafetensorsRefusalTest,
    testing::Values(
        RefusedHeader{"json", R"({"a":)", 0, "not JSON at its byte"},
        RefusedHeader{"list", "[]", 0, "the header is an array"},
        RefusedHeader{"number", "7", 0, "the header is a number"},
        RefusedHeader{"garbage_after", "{} x", 0, "not JSON"},
        RefusedHeader{"no_object", R"({"a":3})", 0, "tensor \"a\": is a number, not an object"},
        RefusedHeader{"missing", R"({"a":{"dtype":"F32","shape":[1]}})", 4,
                      "needs the fields dtype, shape and data_offsets"},
        RefusedHeader{"unknown_field", R"({"a":{"dtype":"F32","stride":[1]}})", 4,
                      "unknown field \"stride\""},
        RefusedHeader{"field_twice", R"({"a":{"dtype":"F32","dtype":"F16"}})", 4,
                      "dtype appears twice"},
        RefusedHeader{"dtype", R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", 4,
                      "tensor \"a\": dtype is \"F99\""},
        RefusedHeader{"dtype_number", R"({"a":{"dtype":3}})", 4, "dtype has a number"},
        RefusedHeader{"shape_text", R"({"a":{"shape":"1"}})", 4, "shape has a string"},
        RefusedHeader{"shape_nested", R"({"a":{"shape":[[1]]}})", 4, "shape has an array"},
        RefusedHeader{"shape_negative", R"({"a":{"shape":[-1]}})", 4, "shape has a negative"},
        RefusedHeader{"shape_fraction", R"({"a":{"shape":[1.5]}})", 4, "shape has a fraction"},
        RefusedHeader{"shape_huge", R"({"a":{"shape":[281474976710657]}})", 4, "the limit is 2^48"},
        RefusedHeader{"rank", R"({"a":{"shape":[1,1,1,1,1,1,1,1,1]}})", 4, "more than 8 extents"},
        RefusedHeader{"three_offsets", R"({"a":{"data_offsets":[0,4,8]}})", 4, "more than two"},
        RefusedHeader{"one_offset", R"({"a":{"data_offsets":[0]}})", 4, "needs two numbers"},
        RefusedHeader{"overflow",
                      R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],)"
                      R"("data_offsets":[0,0]}})",
                      0, "of shape [4294967296, 4294967296, 4294967296]"},
        RefusedHeader{"size", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
                      "data_offsets hold 4 bytes, F32 of shape [2] needs 8"},
        RefusedHeader{"backwards", R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[4,0]}})", 4,
                      "data_offsets are [4, 0]"},
        RefusedHeader{"gap", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8,
                      "the next must begin at 0"},
        RefusedHeader{"overlap",
                      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                      8, "tensor \"b\": data_offsets are [4, 8], the next must begin at 8"},
        RefusedHeader{"left_over", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5,
                      "1 bytes after the last tensor"},
        RefusedHeader{"twice",
                      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                      8, "tensor \"a\" appears twice"},
        RefusedHeader{"metadata", R"({"__metadata__":{"a":1}})", 0, "an object of strings"},
        RefusedHeader{"metadata_list", R"({"__metadata__":[]})", 0, "an object of strings"},
        RefusedHeader{"escape_codes", "{\"\\u001b[31m\":3}", 0, "tensor \"?[31m\""},
        RefusedHeader{"deep", R"({"a":{"shape":[{}]}})", 0, "shape has an object"}),
    [](const auto& tested) { return tested.param.name; });

TEST(SafetensorsTest, HeaderLengthIsBounded) {
  std::string bytes(64, '\xff');
  EXPECT_THAT(Message(Parse(bytes).status()),
              HasSubstr("header length is 18446744073709551615, the limit is 100000000"));
}

TEST(SafetensorsTest, LongNamesAreRefusedAndNotPrintedWhole) {
  const std::string name(2000, 'n');
  const auto parsed = Parse(SafetensorsBytes(R"({")" + name + R"(":{}})", 0));
  EXPECT_THAT(Message(parsed.status()), HasSubstr("longer than 1024 bytes"));
  EXPECT_LT(Message(parsed.status()).size(), 200u);
}

}  // namespace
}  // namespace penstock
