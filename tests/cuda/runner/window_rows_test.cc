// Pages on the emulated GPU whose layers with a window, or second copies of a span, lie in rows of
// their own, beside pages in
// host memory, and beside pages with memory for all layers.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/crc32c.h"
#include "kernels/buffer.h"
#include "kernels/cuda/cuda_pages.h"
#include "kernels/cuda/cuda_slabs.h"
#include "model/cuda/cuda_runner.h"
#include "model/weights/weights.h"
#include "tests/cuda/emulator/emulated_memory.h"
#include "tests/cuda/runner/runner_rig.h"

namespace penstock {
namespace {

using cuda::CudaDevice;
using cuda::CudaPages;

constexpr int64_t kBlocks = 11, kRows = 5;
constexpr uint32_t kNoRow = kRows;

// Two of its five layers see all tokens. With a span, three layers that are stored twice.
KvLayout MixedLayout(const KvPageFormat& format) {
  KvLayout layout{.layers = 5, .kv_heads = 2, .head_dim = 64, .dtype = format.dtype};
  if (format.span > 0) return KvLayout{.layers = 3, .kv_heads = 2, .head_dim = 64}.In(format);
  layout.group.window = 20;
  for (const size_t layer : {0, 2, 3}) layout.group.layers.set(layer);
  return layout;
}

std::vector<std::byte> RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The same pages in the GPU's memory and in the host's.
class WindowRowsTest : public testing::TestWithParam<KvPageFormat> {
 protected:
  explicit WindowRowsTest(size_t slot_bytes = 8 << 10)
      : pages_(*CudaPages::Create(*device_, layout_, {.blocks = kBlocks, .rows = kRows},
                                  {.slot_bytes = slot_bytes, .slots = 2})),
        memory_(kBlocks * layout_.FullStride() + kRows * layout_.RowStride()),
        host_{.arena = memory_.as<std::byte>(), .blocks = kBlocks, .layout = layout_},
        host_rows_(RowsBehind(host_, row_.data(), kNoRow)),
        device_rows_(RowsBehind(pages_->view(), row_.data(), kNoRow)) {
    std::fill_n(memory_.as<std::byte>(), memory_.bytes(), std::byte{0});
    host_.rows = &host_rows_;
    pages_->SetRows(&device_rows_);
  }

  void WriteBoth(const std::vector<uint32_t>& pages, size_t offset, size_t bytes, uint32_t seed) {
    const std::vector<std::byte> from = RandomBytes(pages.size() * bytes, seed);
    WritePages(pages_->view(), pages, offset, bytes, from.data());
    WritePages(host_, pages, offset, bytes, from.data());
  }
  std::vector<std::byte> Read(const PagedKv& kv, const std::vector<uint32_t>& pages, size_t offset,
                              size_t bytes) const {
    std::vector<std::byte> to(pages.size() * bytes, std::byte{0x5a});
    ReadPages(kv, pages, offset, bytes, to.data());
    return to;
  }
  void ExpectSame(const std::vector<uint32_t>& pages, size_t offset, size_t bytes) const {
    EXPECT_EQ(Read(pages_->view(), pages, offset, bytes), Read(host_, pages, offset, bytes))
        << offset << " " << bytes;
  }

  const KvLayout layout_ = MixedLayout(GetParam());
  const std::vector<uint32_t> row_ = {3, kNoRow, 0, kNoRow, kNoRow, 4,
                                      1, kNoRow, 2, kNoRow, kNoRow};
  const std::vector<uint32_t> all_ = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::unique_ptr<CudaDevice> device_ = *CudaDevice::Open(0);
  const std::unique_ptr<CudaPages> pages_;
  const Buffer memory_;
  PagedKv host_;
  const WindowRowsView host_rows_, device_rows_;
};

TEST_P(WindowRowsTest, CopiesAreThoseOfTheHostsPages) {
  const auto at = [&](int32_t layer) { return layout_.BytesBefore(layer); };
  ExpectSame(all_, 0, layout_.BlockStride());  // zeros
  WriteBoth({7, 0, 8, 1, 5}, 0, layout_.BlockStride(), 1);
  WriteBoth({2, 8, 9}, at(1), at(4) - at(1), 2);
  WriteBoth({6}, at(2) + 16, 32, 3);
  for (const auto& [first, last] : {std::pair<size_t, size_t>{0, layout_.BlockStride()},
                                    {0, at(1)},
                                    {at(1), at(2)},
                                    {at(2), at(5)},
                                    {at(1) + 16, at(2) + 16}}) {
    ExpectSame(all_, first, last - first);
    ExpectSame({8, 1}, first, last - first);
  }
}

// Lower tiers copy these.
TEST_P(WindowRowsTest, FirstCopiesAreThoseOfTheHostsPages) {
  const PagedKv first = pages_->view().FirstCopies(), host_first = host_.FirstCopies();
  const size_t stride = first.layout.BlockStride(), layer = layout_.LayerBytes();
  WriteBoth(all_, 0, layout_.PayloadBytes(), 7);
  EXPECT_EQ(Read(first, {8, 0, 3}, 0, stride), Read(host_first, {8, 0, 3}, 0, stride));
  EXPECT_EQ(Read(first, {8, 0, 3}, layer, layer), Read(host_first, {8, 0, 3}, layer, layer));
  const std::vector<std::byte> other = RandomBytes(2 * stride, 8);
  const std::vector<uint32_t> some = {5, 1};
  WritePages(first, some, 0, stride, other.data());
  WritePages(host_first, some, 0, stride, other.data());
  ExpectSame(all_, 0, layout_.PayloadBytes());
}

TEST_P(WindowRowsTest, SlabsAreThoseOfTheHostsPages) {
  WriteBoth(all_, 0, layout_.PayloadBytes(), 4);
  const auto slabs =
      *cuda::CudaSlabs::Create(*device_, pages_->view(), {.slab_bytes_max = 1 << 20});
  std::byte* const slab = slabs->Allocate(1 << 20);
  std::byte* const seen = cuda::emulator::SeenByHardware(slab);
  const std::vector<uint32_t> some = {8, 0, 3, 5};
  for (const auto& [first, last] : {std::pair<int, int>{0, 5}, {2, 4}, {1, 2}, {3, 5}}) {
    const size_t offset = layout_.BytesBefore(first), bytes = layout_.BytesOf(first, last);
    DeviceSlabs::Gathering one{.pieces = {some, offset, bytes}, .slab = slab};
    slabs->Gather({&one, 1});
    const std::vector<std::byte> want = Read(host_, some, offset, bytes);
    EXPECT_TRUE(std::ranges::equal(std::span(seen, want.size()), want)) << first;
    EXPECT_EQ(one.crc, Crc32c(want)) << first;
    const std::vector<std::byte> other = RandomBytes(want.size(), 5);
    std::ranges::copy(other, seen);
    slabs->Scatter(one.pieces, slab, [] {});
    slabs->Drain();
    WritePages(host_, some, offset, bytes, other.data());
    ExpectSame(all_, 0, layout_.PayloadBytes());
  }
  slabs->Free(slab, 1 << 20);
}

INSTANTIATE_TEST_SUITE_P(Formats, WindowRowsTest,
                         testing::Values(KvPageFormat{}, KvPageFormat{.dtype = KvDtype::kK8v4},
                                         KvPageFormat{.dtype = KvDtype::kI4r, .span = 64},
                                         KvPageFormat{.dtype = KvDtype::kK3v2, .span = 128}),
                         [](const auto& test) {
                           return std::string(KvDtypeName(test.param.dtype)) +
                                  (test.param.span > 0 ? "Span" : "");
                         });

// A sequence with rows for its window only.
class WindowedSequence {
 public:
  WindowedSequence(CudaRunner& runner, const CudaDevice& device, const KvPageFormat& format = {})
      : runner_(runner) {
    const KvLayout layout = runner.kv_layout().In(format);
    const int64_t blocks = layout.BlocksFor(kPositions);
    row_.assign(static_cast<size_t>(blocks), kNone);
    pages_ = *CudaPages::Create(device, layout, {.blocks = blocks, .rows = kNone}, {});
    for (int64_t block = blocks; block-- > 0;) table_.push_back(static_cast<uint32_t>(block));
    for (uint32_t row = kOther + 1; row < kNone; ++row) free_.push_back(row);
    rows_ = RowsBehind(pages_->view(), row_.data(), kNone);
    pages_->SetRows(&rows_);
    Spoil(kOther);
  }

  std::vector<float> Step(const std::vector<uint32_t>& tokens) {
    Hold(position_, position_ + static_cast<int64_t>(tokens.size()));
    const SequenceStep step{.tokens = tokens,
                            .position = static_cast<int32_t>(position_),
                            .blocks = table_,
                            .wants_logits = true};
    std::vector<float> logits(static_cast<size_t>(runner_.vocab()));
    const absl::Status status = runner_.Step({.sequences = {&step, 1},
                                              .kv = pages_->view(),
                                              .logits = {logits.data(), {1, runner_.vocab()}}});
    EXPECT_TRUE(status.ok()) << status.message();
    position_ += static_cast<int64_t>(tokens.size());
    return logits;
  }

 private:
  // The rows of the window of tokens [from, to); those that it has passed get other numbers.
  void Hold(int64_t from, int64_t to) {
    const KvLayout& layout = pages_->view().layout;
    const int64_t first = layout.FirstGroupBlock(from);
    for (int64_t i = 0; i < layout.BlocksFor(to); ++i) {
      uint32_t& row = row_[table_[static_cast<size_t>(i)]];
      if (i < first && row != kNone) {
        Spoil(row);
        free_.push_back(std::exchange(row, kNone));
      } else if (i >= first && row == kNone) {
        ASSERT_FALSE(free_.empty());
        row = free_.back();
        free_.pop_back();
      }
    }
  }
  static constexpr uint32_t kOther = 0;  // another sequence's row
  static constexpr uint32_t kNone = kRows + 1;

  // Numbers that are not finite in the memory of a row.
  void Spoil(uint32_t row) {
    const size_t bytes = pages_->view().layout.RowStride();
    cuda::FillDevice(rows_.arena + row * bytes, 0xff, bytes, nullptr);
    cuda::Synchronize(nullptr);
  }

  CudaRunner& runner_;
  std::vector<uint32_t> row_, table_, free_;
  std::unique_ptr<CudaPages> pages_;
  WindowRowsView rows_;
  int64_t position_ = 0;
};

// Prompts in chunks and single tokens, which are graphs: every bit is that of pages with memory for
// all layers.
void ExpectTheBitsOfUndividedPages(const ModelConfig& config, const KvPageFormat& format) {
  const Weights weights = RandomWeights(config, 3, 0.2f);
  const auto device = *CudaDevice::Open(0);
  const auto runner = *CudaRunner::Create(weights, *device, {});
  Rig whole(*runner, 1, format);
  WindowedSequence divided(*runner, *device, format);
  const std::vector<uint32_t> prompt = Prompt(150, 6);
  const auto part = [&](int from, int to) {
    return std::vector<uint32_t>(prompt.begin() + from, prompt.begin() + to);
  };
  int at = 0;
  for (const int to : {21, 53, 54, 55, 56, 80, 97, 98, 99, 100, 130, 131, 132}) {
    EXPECT_EQ(divided.Step(part(at, to)), whole.Step({{0, part(at, to), at}})) << to;
    at = to;
  }
  EXPECT_GT(runner->graphs().launches(), 0);
}

TEST(WindowRowsRunner, HasTheBitsOfUndividedPages) {
  ModelConfig config = TinyConfig();
  config.layers = 4;
  config.sliding_window = {20, 0, 20, 20};
  ExpectTheBitsOfUndividedPages(config, {});
}

TEST(WindowRowsRunner, HasTheBitsOfUndividedPagesWithASpan) {
  ExpectTheBitsOfUndividedPages(TinyConfig(), {.dtype = KvDtype::kK3v3, .span = 64});
  ExpectTheBitsOfUndividedPages(TinyConfig(), {.dtype = KvDtype::kI4r, .span = 64});
}

}  // namespace
}  // namespace penstock
