// Slabs in the memory of the first of several (emulated) GPUs, of pages whose heads all of them
// have.

#include "kernels/cuda/sharded/shard_movers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include "base/crc32c.h"
#include "kernels/cuda/cuda_slabs.h"
#include "kernels/cuda/sharded/head_ranges.h"
#include "tests/cuda/emulator/emulated_memory.h"
#include "tests/cuda/emulator/emulated_stream.h"
#include "tests/support/environment.h"

namespace penstock::cuda {
namespace {

constexpr int64_t kBlocks = 9;
constexpr size_t kStaging = size_t{1} << 20;

struct MoverCase {
  KvDtype dtype = KvDtype::kBf16;
  bool latents = false;
  int ranks = 2;
  const char* peers = "";  // as PENSTOCK_EMULATED_PEERS
};
void PrintTo(const MoverCase& c, std::ostream* out) {
  *out << (c.latents ? "latents" : KvDtypeName(c.dtype)) << " on " << c.ranks << " " << c.peers;
}
KvLayout LayoutOf(const MoverCase& c) {
  if (c.latents) return {.layers = 3, .kv_heads = 1, .head_dim = 576, .latent_rope_dim = 64};
  return {.layers = 3, .kv_heads = 4, .head_dim = 64, .block_tokens = 16, .dtype = c.dtype};
}

class ShardMoversTest : public testing::TestWithParam<MoverCase> {
 protected:
  ShardMoversTest() {
    std::vector<std::unique_ptr<CudaPages>> ranks;
    ShardMovers::Devices devices;
    for (int rank = 0; rank < GetParam().ranks; ++rank) {
      devices_.push_back(*CudaDevice::Open(rank));
      devices.push_back(devices_.back().get());
      ranks.push_back(
          *CudaPages::Create(*devices_.back(), LayoutOfRank(layout_, GetParam().ranks), kBlocks));
    }
    pages_.emplace(std::move(ranks));
    movers_ = *ShardMovers::Create(devices, *pages_);
    slabs_ = *CudaSlabs::Create(*devices_.front(), pages_->view(), {.slab_bytes_max = kStaging},
                                movers_.get());
    staging_ = slabs_->Allocate(kStaging);
    std::vector<std::byte> bytes(kBlocks * layout_.BlockStride());
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    pages_->Write(kAll, 0, layout_.BlockStride(), bytes.data());
  }
  ~ShardMoversTest() override { slabs_->Free(staging_, kStaging); }

  std::vector<std::byte> Read(const DeviceSlabs::Pieces& pieces) {
    std::vector<std::byte> host(pieces.total());
    pages_->Read(pieces.pages, pieces.offset, pieces.bytes, host.data());
    return host;
  }
  // The bytes of one GPU's pages.
  std::vector<std::byte> ReadOf(int rank, const DeviceSlabs::Pieces& pieces) {
    std::vector<std::byte> host(pieces.total());
    pages_->view_of(rank).copier->Read(pieces.pages, pieces.offset, pieces.bytes, host.data());
    return host;
  }
  std::span<std::byte> Seen(size_t bytes) const {
    return {emulator::SeenByHardware(staging_), bytes};
  }
  bool HasPeers() const { return *GetParam().peers == '\0'; }

  const std::vector<uint32_t> kAll = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "4"};
  const ScopedEnvironment peers_{"PENSTOCK_EMULATED_PEERS", GetParam().peers};
  const KvLayout layout_ = LayoutOf(GetParam());
  std::mt19937_64 random_{1};
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::optional<ShardedPages> pages_;
  std::unique_ptr<ShardMovers> movers_;
  std::unique_ptr<CudaSlabs> slabs_;
  std::byte* staging_ = nullptr;
};

TEST_P(ShardMoversTest, SlabsAreThoseOfWholePages) {
  const size_t layer = layout_.LayerBytes();
  const std::vector<uint32_t> from = {7, 0, 3}, to = {1, 8, 2}, others = {0, 3, 4, 5, 6, 7};
  for (const size_t first : {0, 1}) {
    const DeviceSlabs::Pieces source{from, first * layer, 2 * layer};
    const DeviceSlabs::Pieces target{to, first * layer, 2 * layer};
    const DeviceSlabs::Pieces beside{to, (2 - 2 * first) * layer, layer};
    const std::vector<std::byte> wanted = Read(source), before = Read(beside);
    const std::vector<std::byte> untouched = Read({others, 0, 3 * layer});
    std::ranges::fill(Seen(kStaging), std::byte{0x5a});
    DeviceSlabs::Gathering gathering{.pieces = source, .slab = staging_};
    slabs_->Gather({&gathering, 1});
    EXPECT_EQ(gathering.crc, Crc32c(wanted));
    EXPECT_TRUE(std::ranges::equal(Seen(wanted.size()), wanted));
    EXPECT_EQ(Seen(kStaging)[wanted.size()], std::byte{0x5a});
    // As it lands, in a place where no slab has been gathered.
    std::ranges::copy(wanted, Seen(kStaging).begin() + kStaging / 2);
    bool over = false;
    slabs_->Scatter(target, staging_ + kStaging / 2, [&] { over = true; });
    slabs_->Drain();
    EXPECT_TRUE(over);
    EXPECT_TRUE(Read(target) == wanted);
    EXPECT_TRUE(Read(beside) == before);
    EXPECT_TRUE(Read({others, 0, 3 * layer}) == untouched);
  }
  // The first GPU alone gathers latents, into its own memory.
  EXPECT_EQ(movers_->detours(), HasPeers() ? 0u : layout_.HasLatents() ? 2u : 4u);
}

// Every GPU has all latents: a slab has those of the first one, and is scattered to all.
class LatentMoversTest : public ShardMoversTest {};
TEST_P(LatentMoversTest, EveryGpuGetsWholePages) {
  const std::vector<uint32_t> from = {7, 0, 3}, to = {1, 8, 2};
  const size_t layer = layout_.LayerBytes();
  const DeviceSlabs::Pieces source{from, layer, 2 * layer}, target{to, layer, 2 * layer};
  const std::vector<std::byte> wanted = ReadOf(0, source);
  for (int rank = 1; rank < pages_->ranks(); ++rank) {  // would show in the slab
    const std::vector<std::byte> other(source.total(), std::byte{0x77});
    pages_->view_of(rank).copier->Write(from, source.offset, source.bytes, other.data());
  }
  DeviceSlabs::Gathering gathering{.pieces = source, .slab = staging_};
  slabs_->Gather({&gathering, 1});
  EXPECT_EQ(gathering.crc, Crc32c(wanted));
  EXPECT_TRUE(std::ranges::equal(Seen(wanted.size()), wanted));
  slabs_->Scatter(target, staging_, [] {});
  slabs_->Drain();
  const DeviceSlabs::Pieces first_layer{to, 0, layer};
  const std::vector<std::byte> before = ReadOf(0, first_layer);
  for (int rank = 0; rank < pages_->ranks(); ++rank) {
    EXPECT_TRUE(ReadOf(rank, target) == wanted) << rank;
    EXPECT_TRUE(ReadOf(rank, first_layer) == before) << rank;
  }
}

// More than share a wait, with copies in the host's memory, and back into other pages.
TEST_P(ShardMoversTest, ManySlabsAtOnce) {
  const size_t layer = layout_.LayerBytes(), count = std::min<size_t>(37, kStaging / layer);
  std::byte* const pinned = slabs_->AllocatePinned(kStaging);
  std::vector<DeviceSlabs::Gathering> all;
  std::vector<std::vector<std::byte>> wanted;
  for (size_t i = 0; i < count; ++i) {
    const DeviceSlabs::Pieces pieces{std::span(kAll).subspan(i % kBlocks, 1), i % 3 * layer, layer};
    all.push_back({.pieces = pieces,
                   .slab = staging_ + i * layer,
                   .pinned = i % 2 == 0 ? nullptr : pinned + i * layer});
    wanted.push_back(Read(pieces));
  }
  slabs_->Gather(all);
  for (size_t i = 0; i < count; ++i) {
    EXPECT_EQ(all[i].crc, Crc32c(wanted[i])) << i;
    EXPECT_TRUE(std::ranges::equal(Seen(kStaging).subspan(i * layer, layer), wanted[i])) << i;
    if (all[i].pinned == nullptr) continue;
    EXPECT_EQ(std::memcmp(all[i].pinned, wanted[i].data(), layer), 0) << i;
  }
  // Each block gets the layer of the next one.
  const size_t scattered = std::min<size_t>(count, kBlocks);
  std::vector<uint32_t> targets;
  for (size_t i = 0; i < scattered; ++i) targets.push_back((i + 1) % kBlocks);
  for (size_t i = 0; i < scattered; ++i) {
    slabs_->Scatter({std::span(targets).subspan(i, 1), i % 3 * layer, layer}, staging_ + i * layer,
                    [] {});
  }
  slabs_->Drain();
  for (size_t i = 0; i < scattered; ++i) {
    EXPECT_TRUE(Read({std::span(targets).subspan(i, 1), i % 3 * layer, layer}) == wanted[i]) << i;
  }
  slabs_->FreePinned(pinned, kStaging);
}

TEST_P(ShardMoversTest, PeerAccessIsAskedAndTried) {
  const std::string reason = Message(movers_->peer_access());
  if (HasPeers() || GetParam().ranks == 1) {
    EXPECT_EQ(reason, "");
  } else if (GetParam().peers == std::string("refused")) {
    EXPECT_THAT(reason, testing::HasSubstr("cuda:1 cannot access cuda:0's memory"));
  } else {
    EXPECT_THAT(reason, testing::HasSubstr("cuda:1 wrote to cuda:0's memory did not arrive"));
  }
}

const std::vector<MoverCase> kLatentCases = {{.latents = true, .ranks = 2},
                                             {.latents = true, .ranks = 4},
                                             {.latents = true, .ranks = 2, .peers = "refused"}};
INSTANTIATE_TEST_SUITE_P(Degrees, LatentMoversTest, testing::ValuesIn(kLatentCases));

std::vector<MoverCase> MoverCases() {
  std::vector<MoverCase> cases = kLatentCases;
  cases.insert(cases.end(),
               {{.ranks = 1}, {.ranks = 2, .peers = "astray"}, {.ranks = 4, .peers = "refused"}});
  for (const KvDtype dtype : kKvDtypes) {
    cases.push_back({.dtype = dtype, .ranks = 2});
    cases.push_back({.dtype = dtype, .ranks = 4});
    cases.push_back({.dtype = dtype, .ranks = 2, .peers = "refused"});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Degrees, ShardMoversTest, testing::ValuesIn(MoverCases()));

// The emulator itself: a device reaches another one's memory for wires with peer access only.
TEST(EmulatedPeersDeathTest, WithoutAccessMemoryOfAnotherGpuIsOutOfReach) {
  const ScopedEnvironment gpus("PENSTOCK_EMULATED_GPUS", "2");
  const auto owner = *CudaDevice::Open(0), other = *CudaDevice::Open(1);
  owner->Select();
  void* const memory = AllocateForWires(4096);
  const auto write = [&] {
    other->Select();
    FillDevice(memory, 7, 4096, other->stream());
    Synchronize(other->stream());
  };
  EXPECT_DEATH(write(), "");
  EXPECT_DEATH(
      {
        PENSTOCK_CHECK_EQ(*static_cast<char*>(memory), 7);  // nor does the CPU
      },
      "");
  other->Select();
  ASSERT_TRUE(EnablePeerAccess(0));
  write();
  EXPECT_EQ(*emulator::SeenByHardware(memory), std::byte{7});
  owner->Select();
  FreeForWires(memory, 4096);
}

// Slabs of pages with rows, of layers with a window or second copies of a span.
struct RowMoverCase {
  KvPageFormat format;
  int ranks = 2;
  const char* peers = "";
};
void PrintTo(const RowMoverCase& c, std::ostream* out) {
  *out << KvPageFormatName(c.format) << " on " << c.ranks << " " << c.peers;
}

constexpr int64_t kRows = 5;
constexpr uint32_t kNoRow = kRows;

KvLayout RowMoverLayout(const KvPageFormat& format) {
  KvLayout layout{.layers = 3, .kv_heads = 4, .head_dim = 64};
  if (format.span > 0) return layout.In(format);
  layout.layers = 5;
  layout.group.window = 20;
  for (const size_t layer : {0, 2, 3}) layout.group.layers.set(layer);
  return layout;
}

class RowMoversTest : public testing::TestWithParam<RowMoverCase> {
 protected:
  RowMoversTest() {
    std::vector<std::unique_ptr<CudaPages>> ranks;
    ShardMovers::Devices devices;
    for (int rank = 0; rank < GetParam().ranks; ++rank) {
      devices_.push_back(*CudaDevice::Open(rank));
      devices.push_back(devices_.back().get());
      ranks.push_back(*CudaPages::Create(*devices_.back(), LayoutOfRank(layout_, GetParam().ranks),
                                         {.blocks = kBlocks, .rows = kRows}, {}));
    }
    pages_.emplace(std::move(ranks));
    pool_rows_ = RowsBehind(pages_->view(), row_.data(), kNoRow);
    pages_->SetRows(&pool_rows_);
    host_.rows = &host_rows_;
    movers_ = *ShardMovers::Create(devices, *pages_);
    slabs_ = *CudaSlabs::Create(*devices_.front(), pages_->view(), {.slab_bytes_max = kStaging},
                                movers_.get());
    staging_ = slabs_->Allocate(kStaging);
    const auto bytes = RandomBytes(kBlocks * layout_.PayloadBytes());
    pages_->Write(all_, 0, layout_.PayloadBytes(), bytes.data());
    WritePages(host_, all_, 0, layout_.PayloadBytes(), bytes.data());
  }
  ~RowMoversTest() override { slabs_->Free(staging_, kStaging); }

  std::vector<std::byte> RandomBytes(size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }
  static std::vector<std::byte> Read(const PagedKv& kv, const DeviceSlabs::Pieces& pieces) {
    std::vector<std::byte> host(pieces.total());
    ReadPages(kv, pieces.pages, pieces.offset, pieces.bytes, host.data());
    return host;
  }
  std::span<std::byte> Seen(size_t bytes) const {
    return {emulator::SeenByHardware(staging_), bytes};
  }

  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "4"};
  const ScopedEnvironment peers_{"PENSTOCK_EMULATED_PEERS", GetParam().peers};
  const KvLayout layout_ = RowMoverLayout(GetParam().format);
  const std::vector<uint32_t> all_ = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<uint32_t> row_ = {2, kNoRow, 0, kNoRow, 4, 1, kNoRow, 3, kNoRow};
  std::vector<std::byte> memory_ =
      std::vector<std::byte>(kBlocks * layout_.FullStride() + kRows * layout_.RowStride());
  PagedKv host_{.arena = memory_.data(), .blocks = kBlocks, .layout = layout_};
  const WindowRowsView host_rows_ = RowsBehind(host_, row_.data(), kNoRow);
  WindowRowsView pool_rows_;
  std::mt19937_64 random_{1};
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::optional<ShardedPages> pages_;
  std::unique_ptr<ShardMovers> movers_;
  std::unique_ptr<CudaSlabs> slabs_;
  std::byte* staging_ = nullptr;
};

// Every range of layers, of blocks with and without rows.
TEST_P(RowMoversTest, SlabsAreThoseOfTheHostsPages) {
  for (int32_t first = 0; first < layout_.layers; ++first) {
    for (int32_t last = first + 1; last <= layout_.layers; ++last) {
      std::vector<uint32_t> some = all_;
      std::shuffle(some.begin(), some.end(), random_);
      some.resize(1 + random_() % 5);
      const DeviceSlabs::Pieces pieces{some, layout_.BytesBefore(first),
                                       layout_.BytesOf(first, last)};
      const std::vector<std::byte> wanted = Read(host_, pieces);
      std::ranges::fill(Seen(wanted.size() + 1), std::byte{0x5a});
      DeviceSlabs::Gathering gathering{.pieces = pieces, .slab = staging_};
      slabs_->Gather({&gathering, 1});
      EXPECT_EQ(gathering.crc, Crc32c(wanted)) << first << " " << last;
      EXPECT_TRUE(std::ranges::equal(Seen(wanted.size()), wanted)) << first << " " << last;
      EXPECT_EQ(Seen(kStaging)[wanted.size()], std::byte{0x5a});
      const std::vector<std::byte> other = RandomBytes(wanted.size());
      std::ranges::copy(other, Seen(kStaging).begin());
      slabs_->Scatter(pieces, staging_, [] {});
      slabs_->Drain();
      WritePages(host_, some, pieces.offset, pieces.bytes, other.data());
      const DeviceSlabs::Pieces whole{all_, 0, layout_.PayloadBytes()};
      EXPECT_TRUE(Read(pages_->view(), whole) == Read(host_, whole)) << first << " " << last;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, RowMoversTest,
    testing::Values(
        RowMoverCase{}, RowMoverCase{.ranks = 4, .peers = "refused"},
        RowMoverCase{.format = {.dtype = KvDtype::kK3v3, .span = 128}},
        RowMoverCase{.format = {.dtype = KvDtype::kK3v2, .span = 64}, .ranks = 4},
        RowMoverCase{.format = {.dtype = KvDtype::kI4r, .span = 64}, .peers = "refused"},
        RowMoverCase{.format = {.dtype = KvDtype::kI8, .span = 64, .centred = true}, .ranks = 4}));

TEST(OddShardsTest, HeadsOfOddSizesAreRefused) {
  const ScopedEnvironment gpus("PENSTOCK_EMULATED_GPUS", "2");
  const KvLayout layout{
      .layers = 1, .kv_heads = 2, .head_dim = 32, .block_tokens = 2, .dtype = KvDtype::kK3v2};
  std::vector<std::unique_ptr<CudaDevice>> devices;
  std::vector<std::unique_ptr<CudaPages>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    devices.push_back(*CudaDevice::Open(rank));
    ranks.push_back(*CudaPages::Create(*devices.back(), LayoutOfRank(layout, 2), kBlocks));
  }
  const ShardedPages pages(std::move(ranks));
  const auto movers = ShardMovers::Create({devices[0].get(), devices[1].get()}, pages);
  EXPECT_TRUE(absl::IsFailedPrecondition(movers.status())) << movers.status();
  EXPECT_THAT(Message(movers.status()), testing::HasSubstr("40 bytes of codes and 8 of scales"));
}

}  // namespace
}  // namespace penstock::cuda
