// Pages whose heads are spread over several (emulated) GPUs, as the host sees them.

#include "kernels/cuda/sharded/sharded_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "kernels/cuda/sharded/head_ranges.h"
#include "tests/cuda/cases/device_bytes.h"
#include "tests/support/environment.h"

namespace penstock::cuda {
namespace {

constexpr int64_t kBlocks = 7;

struct ShardCase {
  KvDtype dtype = KvDtype::kBf16;
  bool latents = false;
  int ranks = 2;
  size_t slot_bytes = size_t{4} << 20;
};

KvLayout LayoutOf(const ShardCase& c) {
  if (c.latents) return {.layers = 3, .kv_heads = 1, .head_dim = 576, .latent_rope_dim = 64};
  return {.layers = 3, .kv_heads = 4, .head_dim = 64, .block_tokens = 16, .dtype = c.dtype};
}

class ShardedPagesTest : public testing::TestWithParam<ShardCase> {
 protected:
  ShardedPagesTest() : mirror_(kBlocks * layout_.BlockStride()) {
    std::vector<std::unique_ptr<CudaPages>> ranks;
    for (int rank = 0; rank < GetParam().ranks; ++rank) {
      devices_.push_back(*CudaDevice::Open(rank));
      ranks.push_back(*CudaPages::Create(*devices_.back(), LayoutOfRank(layout_, GetParam().ranks),
                                         {.blocks = kBlocks},
                                         {.slot_bytes = GetParam().slot_bytes}));
    }
    pages_ = std::make_unique<ShardedPages>(std::move(ranks));
  }

  void Write(const std::vector<uint32_t>& ids, size_t offset, size_t bytes) {
    std::vector<std::byte> host(ids.size() * bytes);
    for (std::byte& byte : host) byte = static_cast<std::byte>(random_());
    pages_->Write(ids, offset, bytes, host.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      std::byte* page = mirror_.data() + ids[i] * layout_.BlockStride();
      std::copy_n(host.data() + i * bytes, bytes, page + offset);
      std::fill(page + layout_.PayloadBytes(), page + layout_.BlockStride(), std::byte{0});
    }
  }
  void ExpectRead(const std::vector<uint32_t>& ids, size_t offset, size_t bytes) {
    std::vector<std::byte> host(ids.size() * bytes + 1, std::byte{0x5a}), want;
    pages_->Read(ids, offset, bytes, host.data());
    for (const uint32_t id : ids) {
      const auto from =
          mirror_.begin() + static_cast<ptrdiff_t>(id * layout_.BlockStride() + offset);
      want.insert(want.end(), from, from + static_cast<ptrdiff_t>(bytes));
    }
    want.push_back(std::byte{0x5a});
    EXPECT_TRUE(host == want) << offset << " on " << bytes;
  }

  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "4"};
  const KvLayout layout_ = LayoutOf(GetParam());
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::unique_ptr<ShardedPages> pages_;
  std::vector<std::byte> mirror_;
  std::mt19937_64 random_{1};
};

TEST_P(ShardedPagesTest, HoldWhatTheyWereGiven) {
  EXPECT_EQ(pages_->view().layout, layout_);
  EXPECT_EQ(pages_->view().blocks, kBlocks);
  const std::vector<uint32_t> some = {6, 0, 3, 1}, all = {0, 1, 2, 3, 4, 5, 6};
  const size_t layer = layout_.LayerBytes(), stride = layout_.BlockStride();
  ExpectRead(all, 0, stride);  // zeros
  Write(some, 0, layout_.PayloadBytes());
  Write({2, 5}, 0, stride);
  Write({6, 2}, layer, 2 * layer);
  Write({5}, 16, layer + 32);  // of no layer's bounds
  ExpectRead(all, 0, stride);
  ExpectRead(some, layer, layer);
  ExpectRead({5, 2}, layer - 32, 64);
  ExpectRead({}, 0, 16);
}

// A GPU's kernels see the pages of its own heads alone, but whole ones of latents.
TEST_P(ShardedPagesTest, EveryGpuHasItsHeads) {
  Write({4}, 0, layout_.PayloadBytes());
  const uint32_t page = 4;
  std::vector<std::byte> whole(layout_.PayloadBytes());
  pages_->Read({&page, 1}, 0, whole.size(), whole.data());
  for (int rank = 0; rank < pages_->ranks(); ++rank) {
    const PagedKv& own = pages_->view_of(rank);
    std::vector<std::byte> part(own.layout.PayloadBytes());
    own.copier->Read({&page, 1}, 0, part.size(), part.data());
    const size_t heads = own.layout.kv_heads * own.layout.HeadBytes();
    const size_t place = layout_.HasLatents() ? 0 : static_cast<size_t>(rank) * heads;
    for (int32_t layer = 0; layer < layout_.layers; ++layer) {
      const auto from =
          whole.begin() + static_cast<ptrdiff_t>(layer * layout_.LayerBytes() + place);
      EXPECT_TRUE(
          std::equal(from, from + static_cast<ptrdiff_t>(heads),
                     part.begin() + static_cast<ptrdiff_t>(layer * own.layout.LayerBytes())))
          << rank << " " << layer;
    }
  }
}

std::vector<ShardCase> Cases() {
  std::vector<ShardCase> cases = {{.ranks = 1},
                                  {.ranks = 4, .slot_bytes = 4096},
                                  {.latents = true, .ranks = 2},
                                  {.latents = true, .ranks = 4, .slot_bytes = 4096}};
  for (const KvDtype dtype : kKvDtypes) {
    cases.push_back({.dtype = dtype, .ranks = 2});
    cases.push_back({.dtype = dtype, .ranks = 4, .slot_bytes = 16 << 10});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Degrees, ShardedPagesTest, testing::ValuesIn(Cases()));

// Pages with rows apart, beside the same in the host's memory.
struct RowsCase {
  KvPageFormat format;
  int ranks = 2;
  size_t slot_bytes = size_t{4} << 20;
};
void PrintTo(const RowsCase& c, std::ostream* out) {
  *out << KvPageFormatName(c.format) << " on " << c.ranks << " by " << c.slot_bytes;
}

constexpr int64_t kRows = 3;
constexpr uint32_t kNoRow = kRows;

// With a span, three layers that are stored twice; else two of five layers see all tokens.
KvLayout RowsLayout(const KvPageFormat& format) {
  KvLayout layout{.layers = 3, .kv_heads = 4, .head_dim = 64};
  if (format.span > 0) return layout.In(format);
  layout.layers = 5;
  layout.group.window = 20;
  for (const size_t layer : {0, 2, 3}) layout.group.layers.set(layer);
  return layout;
}

class ShardedRowsTest : public testing::TestWithParam<RowsCase> {
 protected:
  ShardedRowsTest() {
    std::vector<std::unique_ptr<CudaPages>> ranks;
    for (int rank = 0; rank < GetParam().ranks; ++rank) {
      devices_.push_back(*CudaDevice::Open(rank));
      ranks.push_back(*CudaPages::Create(*devices_.back(), LayoutOfRank(layout_, GetParam().ranks),
                                         {.blocks = kBlocks, .rows = kRows},
                                         {.slot_bytes = GetParam().slot_bytes}));
    }
    pages_ = std::make_unique<ShardedPages>(std::move(ranks));
    host_.rows = &host_rows_;
    pool_rows_ = RowsBehind(pages_->view(), row_.data(), kNoRow);
    pages_->SetRows(&pool_rows_);
  }

  std::vector<std::byte> RandomBytes(size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }
  void WriteBoth(const std::vector<uint32_t>& ids, size_t offset, size_t bytes) {
    const std::vector<std::byte> from = RandomBytes(ids.size() * bytes);
    WritePages(pages_->view(), ids, offset, bytes, from.data());
    WritePages(host_, ids, offset, bytes, from.data());
  }
  static std::vector<std::byte> Read(const PagedKv& kv, const std::vector<uint32_t>& ids,
                                     size_t offset, size_t bytes) {
    std::vector<std::byte> to(ids.size() * bytes, std::byte{0x5a});
    ReadPages(kv, ids, offset, bytes, to.data());
    return to;
  }
  void ExpectSame(const std::vector<uint32_t>& ids, size_t offset, size_t bytes) const {
    EXPECT_TRUE(Read(pages_->view(), ids, offset, bytes) == Read(host_, ids, offset, bytes))
        << offset << " on " << bytes;
  }
  std::vector<uint32_t> SomeBlocks() {
    std::vector<uint32_t> ids = all_;
    std::shuffle(ids.begin(), ids.end(), random_);
    ids.resize(1 + random_() % ids.size());
    return ids;
  }
  // Multiples of 16 within `end`.
  std::pair<size_t, size_t> SomeRange(size_t end) {
    const size_t units = end / 16, first = random_() % units;
    return {16 * first, 16 * (1 + random_() % (units - first))};
  }

  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "4"};
  const KvLayout layout_ = RowsLayout(GetParam().format);
  const std::vector<uint32_t> row_ = {2, kNoRow, 0, kNoRow, kNoRow, 1, kNoRow};
  const std::vector<uint32_t> all_ = {0, 1, 2, 3, 4, 5, 6};
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::unique_ptr<ShardedPages> pages_;
  std::vector<std::byte> memory_ =
      std::vector<std::byte>(kBlocks * layout_.FullStride() + kRows * layout_.RowStride());
  PagedKv host_{.arena = memory_.data(), .blocks = kBlocks, .layout = layout_};
  const WindowRowsView host_rows_ = RowsBehind(host_, row_.data(), kNoRow);
  WindowRowsView pool_rows_;
  std::mt19937_64 random_{1};
};

TEST_P(ShardedRowsTest, CopiesAreThoseOfTheHostsPages) {
  const size_t stride = layout_.BlockStride();
  ExpectSame(all_, 0, stride);  // zeros
  WriteBoth(all_, 0, stride);
  ExpectSame(all_, 0, stride);
  for (int i = 0; i < 12; ++i) {
    const auto [to, to_bytes] = SomeRange(layout_.PayloadBytes());
    WriteBoth(SomeBlocks(), to, to_bytes);
    const auto [from, from_bytes] = SomeRange(stride);
    ExpectSame(SomeBlocks(), from, from_bytes);
  }
  ExpectSame(all_, 0, stride);
}

// Lower tiers copy these.
TEST_P(ShardedRowsTest, FirstCopiesAreThoseOfTheHostsPages) {
  if (layout_.span == 0) {
    EXPECT_EQ(pages_->first_copies(), nullptr);
    return;
  }
  WriteBoth(all_, 0, layout_.PayloadBytes());
  const PagedKv first = pages_->view().FirstCopies(), host_first = host_.FirstCopies();
  const size_t stride = first.layout.BlockStride();
  EXPECT_TRUE(Read(first, all_, 0, stride) == Read(host_first, all_, 0, stride));
  for (int i = 0; i < 6; ++i) {
    const auto [at, bytes] = SomeRange(first.layout.PayloadBytes());
    const std::vector<uint32_t> ids = SomeBlocks();
    EXPECT_TRUE(Read(first, ids, at, bytes) == Read(host_first, ids, at, bytes));
    const std::vector<std::byte> other = RandomBytes(ids.size() * bytes);
    WritePages(first, ids, at, bytes, other.data());
    WritePages(host_first, ids, at, bytes, other.data());
  }
  ExpectSame(all_, 0, layout_.PayloadBytes());
}

// Swapped sequences keep these.
TEST_P(ShardedRowsTest, RowsAreThoseOfTheHostsPages) {
  if (layout_.span == 0) return;
  WriteBoth(all_, 0, layout_.PayloadBytes());
  const std::vector<uint32_t> with_rows = {5, 0, 2}, two = {2, 5};
  std::vector<std::byte> got(3 * layout_.RowPayloadBytes()), want(got.size());
  ReadRows(pages_->view(), with_rows, got.data());
  ReadRows(host_, with_rows, want.data());
  EXPECT_TRUE(got == want);
  WriteRows(pages_->view(), two, got.data());
  WriteRows(host_, two, got.data());
  ExpectSame(all_, 0, layout_.PayloadBytes());
}

// A GPU's kernels find the rows of its own heads where the whole pages say.
TEST_P(ShardedRowsTest, EveryGpuHasItsHeadsOfBothCopies) {
  WriteBoth(all_, 0, layout_.PayloadBytes());
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const PagedKv& own = pages_->view_of(rank);
    for (int32_t layer = 0; layer < layout_.layers; ++layer) {
      const bool second = layout_.span > 0 && layer % 2 == 1;
      for (int32_t head = 0; head < own.layout.kv_heads; ++head) {
        const int32_t of_whole = rank * own.layout.kv_heads + head;
        for (const auto plane : {penstock::KvPlane::kKeys, penstock::KvPlane::kValues}) {
          const auto at = [&](const KvLayout& layout, int32_t of) {
            return second ? layout.RecentAt(of, plane, 7) : layout.CodesAt(of, plane, 7);
          };
          const size_t bytes = second ? 64 * sizeof(Bf16) : layout_.RowBytes(plane);
          for (const uint32_t block : {0u, 2u, 5u}) {
            const std::vector<std::byte> got =
                BytesOf(rank, own.Layer(block, layer) + at(own.layout, head), bytes);
            EXPECT_TRUE(std::equal(got.begin(), got.end(),
                                   host_.Layer(block, layer) + at(layout_, of_whole)))
                << rank << " " << layer << " " << head;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, ShardedRowsTest,
    testing::Values(
        RowsCase{.ranks = 2}, RowsCase{.ranks = 4, .slot_bytes = 4096},
        RowsCase{.format = {.dtype = KvDtype::kK3v3, .span = 128}, .ranks = 1},
        RowsCase{.format = {.dtype = KvDtype::kK3v3, .span = 128}, .ranks = 2},
        RowsCase{.format = {.dtype = KvDtype::kK3v2, .span = 64}, .ranks = 4, .slot_bytes = 4096},
        RowsCase{
            .format = {.dtype = KvDtype::kI4r, .span = 128}, .ranks = 2, .slot_bytes = 16 << 10},
        RowsCase{.format = {.dtype = KvDtype::kI8, .span = 64}, .ranks = 4},
        RowsCase{.format = {.dtype = KvDtype::kK3v3, .span = 128, .centred = true}, .ranks = 4}));

}  // namespace
}  // namespace penstock::cuda
