// Experts from a file are those that went there, and a damaged file is an error.

#include "model/experts/expert_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <random>

#include "lab/fake/temp_folder.h"
#include "tests/support/open_files.h"

namespace penstock {
namespace {

constexpr int64_t kHidden = 64, kIntermediate = 32;

// Rows of the expert's own bits, so that no two experts are equal.
PackedMatrix Packed(int64_t outputs, int64_t inputs, int seed) {
  PackedMatrix matrix(outputs, inputs);
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<Bf16> row(static_cast<size_t>(inputs));
  for (int64_t r = 0; r < outputs; ++r) {
    for (Bf16& value : row) value = {static_cast<uint16_t>(random() & 0x3fff)};
    matrix.SetRow(r, row.data());
  }
  return matrix;
}

QuantisedMatrix Quantised(int64_t outputs, int64_t inputs, int seed) {
  QuantisedMatrix matrix(outputs, inputs, {.bits = 4, .group = 32});
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<uint8_t> codes(static_cast<size_t>(inputs));
  const std::vector<float> scales(static_cast<size_t>(matrix.groups()), 0.5f);
  for (int64_t r = 0; r < outputs; ++r) {
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random() & 15);
    matrix.SetRow(r, {.codes = codes, .scales = scales});
  }
  return matrix;
}

// Experts of different sizes: in bf16, and in four bits with biases and stacked sections.
GatedWeights MakeExpert(int seed) {
  if (seed % 2 == 0) {
    return {.gate_up = Packed(2 * kIntermediate, kHidden, seed),
            .down = Packed(kHidden, kIntermediate, seed + 1000)};
  }
  WeightMatrix::Sections sections;
  sections.push_back(Quantised(32, kHidden, seed));
  sections.push_back(Quantised(32, kHidden, seed + 500));
  return {.gate_up = WeightMatrix(std::move(sections)),
          .gate_up_bias = std::vector<float>(64, static_cast<float>(seed)),
          .down = Quantised(kHidden, kIntermediate, seed + 1000),
          .down_bias = std::vector<float>(kHidden, static_cast<float>(-seed))};
}

void ExpectEqual(const GatedWeights& found, const GatedWeights& want) {
  const auto same = [](const WeightMatrix& a, const WeightMatrix& b) {
    const auto parts = a.memory(), others = b.memory();
    return std::ranges::equal(parts, others,
                              [](auto x, auto y) { return std::ranges::equal(x, y); });
  };
  EXPECT_TRUE(same(found.gate_up, want.gate_up));
  EXPECT_TRUE(same(found.down, want.down));
  EXPECT_EQ(found.gate_up_bias, want.gate_up_bias);
  EXPECT_EQ(found.down_bias, want.down_bias);
}

class ExpertCacheTest : public testing::Test {
 protected:
  static constexpr int kExperts = 12;

  // A cache for `count` of the largest experts.
  void Open(size_t count) {
    size_t largest = 0;
    for (int e = 0; e < kExperts; ++e) {
      largest = std::max(largest, MakeExpert(e).memory_bytes());
    }
    auto cache = ExpertCache::Create({.directory = folder_.path(), .bytes = count * largest});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    experts_.clear();
    for (int e = 0; e < kExperts; ++e) {
      experts_.push_back(MakeExpert(e));
      ASSERT_TRUE(cache_->Add(experts_.back()).ok());
      EXPECT_EQ(experts_.back().gate_up.bytes() + experts_.back().down.bytes(), 0u);
    }
    cache_->Start();
  }

  // One layer that needs these experts.
  absl::Status Use(const std::vector<int32_t>& experts) {
    std::vector<ExpertUse> uses;
    for (const int32_t e : experts) uses.push_back({.expert = e, .tokens = 1});
    cache_->Begin(uses, 1);
    for (const int32_t e : experts) {
      ASSIGN_OR_RETURN(const GatedWeights* const found, cache_->Get(experts_[e]));
      ExpectEqual(*found, MakeExpert(e));
      cache_->Release(e);
    }
    return absl::OkStatus();
  }

  std::string File() const {
    const std::vector<std::string> files = UnnamedFiles("self", folder_.path());
    return files.size() == 1 ? files[0] : "";
  }

  const TempFolder folder_;
  std::vector<GatedWeights> experts_;
  std::unique_ptr<ExpertCache> cache_;
};

TEST_F(ExpertCacheTest, EveryBudgetGivesTheSameExperts) {
  for (const size_t slots : {1, 2, 3, 7, 12, 50}) {
    Open(slots);
    std::mt19937 random(static_cast<unsigned>(slots));
    for (int step = 0; step < 30; ++step) {
      std::vector<int32_t> used;
      for (int32_t e = 0; e < kExperts; ++e) {
        if (random() % 3 != 0) used.push_back(e);
      }
      ASSERT_TRUE(Use(used).ok());
    }
    const ExpertCacheStats stats = cache_->stats();
    EXPECT_LE(stats.bytes_resident, stats.bytes_total);
    EXPECT_EQ(stats.read_errors, 0u);
    EXPECT_GT(stats.bytes_read, 0u);
    if (slots >= kExperts) {
      EXPECT_EQ(stats.misses, size_t{kExperts});
    } else {
      EXPECT_GT(stats.misses, size_t{kExperts});
    }
  }
}

TEST_F(ExpertCacheTest, CountsHitsAndMisses) {
  Open(3);
  ASSERT_TRUE(Use({0, 1}).ok());
  ASSERT_TRUE(Use({0, 1}).ok());
  ASSERT_TRUE(Use({2}).ok());
  ASSERT_TRUE(Use({3}).ok());  // in place of 2
  ASSERT_TRUE(Use({0, 2}).ok());
  const ExpertCacheStats stats = cache_->stats();
  EXPECT_EQ(stats.misses, 5u);
  EXPECT_EQ(stats.hits, 3u);
}

TEST_F(ExpertCacheTest, TheFileHasNoName) {
  Open(2);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_EQ(std::filesystem::file_size(File()), cache_->stats().file_bytes);
}

TEST_F(ExpertCacheTest, ATruncatedFileIsAnErrorUntilItIsWhole) {
  Open(2);
  ASSERT_TRUE(Use({0, 1}).ok());
  const std::string file = File();
  const auto size = static_cast<off_t>(std::filesystem::file_size(file));
  ASSERT_EQ(truncate(file.c_str(), size / 2), 0);
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = Use({0, 1, 10, 11});
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(Message(status).find(folder_.path()), std::string::npos) << status;
  }
  EXPECT_GT(cache_->stats().read_errors, 0u);
  EXPECT_TRUE(Use({0, 1, 2}).ok());  // experts before the cut
}

TEST_F(ExpertCacheTest, OtherBytesAreAnError) {
  Open(1);
  const int fd = open(File().c_str(), O_WRONLY);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(pwrite(fd, "x", 1, 100), 1);
  close(fd);
  const absl::Status status = Use({0});
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(Use({1, 2}).ok());
}

// A limit of the process takes the place of a full disk.
TEST_F(ExpertCacheTest, AFileThatCannotGrowIsAnError) {
  auto cache = ExpertCache::Create({.directory = folder_.path(), .bytes = 1 << 20});
  ASSERT_TRUE(cache.ok());
  GatedWeights first = MakeExpert(0), second = MakeExpert(1);
  ASSERT_TRUE((*cache)->Add(first).ok());
  const size_t bytes = second.gate_up.bytes() + second.down.bytes();
  rlimit whole{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &whole), 0);
  const rlimit less{.rlim_cur = std::filesystem::file_size(File()) + bytes / 2,
                    .rlim_max = whole.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &less), 0);
  const absl::Status status = (*cache)->Add(second);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &whole), 0);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(Message(status).find(folder_.path()), std::string::npos) << status;
  EXPECT_EQ(second.gate_up.bytes() + second.down.bytes(), bytes);  // it is still in memory
}

TEST_F(ExpertCacheTest, AnErrorNamesTheLimit) {
  auto cache = ExpertCache::Create({.directory = folder_.path(), .bytes = 4096});
  ASSERT_TRUE(cache.ok());
  GatedWeights expert = MakeExpert(0);
  const absl::Status status = (*cache)->Add(expert);
  EXPECT_EQ(
      Message(status),
      "expert_memory is 4 KiB, and one expert of this model takes 20 KiB; give at least that, "
      "or leave expert_memory out to keep all experts in memory");
  const auto missing = ExpertCache::Create({.directory = folder_.path() + "/no", .bytes = 4096});
  EXPECT_TRUE(absl::IsNotFound(missing.status())) << missing.status();
  EXPECT_NE(Message(missing.status()).find("/no: "), std::string::npos) << missing.status();
}

}  // namespace
}  // namespace penstock
