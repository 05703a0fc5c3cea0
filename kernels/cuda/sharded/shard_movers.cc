#include "kernels/cuda/sharded/shard_movers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/kv_planes.h"
#include "kernels/cuda/page_pieces.h"
#include "kernels/cuda/sharded/head_ranges.h"
#include "kernels/cuda/sharded/peer_access.h"
#include "kernels/cuda/slabs.h"

namespace penstock::cuda {
namespace {

constexpr size_t kUnit = 16;  // granularity of MoveSlabPart, in bytes

absl::Status TryAll(const ShardMovers::Devices& devices) {
  for (const CudaDevice* device : devices) {
    if (device != devices.front()) RETURN_IF_ERROR(TryPeerAccess(*device, *devices.front()));
  }
  return absl::OkStatus();
}

// The block ids of one slab, and behind them the rows of these blocks if there are any, on a GPU
// and on the host.
struct Ids {
  DeviceBuffer device;
  PinnedBuffer host;
};

std::vector<uint32_t> IdsOf(const PagedKv& kv, const SpreadPages::Move& move) {
  std::vector<uint32_t> ids(move.pieces.pages.begin(), move.pieces.pages.end());
  if (kv.rows == nullptr) return ids;
  const PageAccess access = move.scatter ? PageAccess::kWrite : PageAccess::kRead;
  const std::vector<uint32_t> rows = RowsOf(*kv.rows, move.pieces.pages, access);
  ids.insert(ids.end(), rows.begin(), rows.end());
  return ids;
}

}  // namespace

// The thread waits for one kind of work after the other: no stream waits for another one's.
class ShardMovers::RankMover final : public Mover {
 public:
  explicit RankMover(ShardMovers& movers) : movers_(movers) {}
  ~RankMover() override;

  absl::Status Open(size_t moves_max, size_t slab_bytes_max, bool high_priority);
  absl::Status MoveAll(std::span<const Move> moves) override;

 private:
  // The stream and the buffers of one GPU.
  struct Rank {
    void* stream = nullptr;
    void* done = nullptr;  // event: the last copy is complete
    std::vector<Ids> ids;  // [moves_max]
  };
  const CudaDevice& first() const { return *movers_.devices_.front(); }
  // True if the first GPU alone makes the move: all have the same latents, and it has the slab.
  bool IsOfFirst(const Move& move) const {
    return !move.scatter && movers_.pages_.view().layout.HasLatents();
  }
  // Null if the move takes no detour.
  std::byte* DetourOf(const Move& move) const {
    return IsOfFirst(move) ? nullptr : movers_.DetourOf(move.slab);
  }
  absl::Status OpenRank(Rank& rank, size_t moves_max, size_t ids_bytes, bool high_priority);
  void MoveRank(size_t rank, const Move& move, size_t index);
  SlabPartParams PartOf(int rank, const Move& move, const LayerRun& run) const;
  void AwaitRank(size_t rank);
  void CopyDetours(std::span<const Move> moves, bool scatter);

  ShardMovers& movers_;
  std::vector<Rank> ranks_;
  // The first GPU's stream for copies of detours to and from the host, and the event of the last.
  void* detours_ = nullptr;
  void* detoured_ = nullptr;
};

ShardMovers::RankMover::~RankMover() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    movers_.devices_[i]->Select();
    DestroyEvent(ranks_[i].done);
    DestroyStream(ranks_[i].stream);
    ranks_[i].ids.clear();
  }
  first().Select();
  DestroyEvent(detoured_);
  DestroyStream(detours_);
}

absl::Status ShardMovers::RankMover::OpenRank(Rank& rank, size_t moves_max, size_t ids_bytes,
                                              bool high_priority) {
  constexpr const char* kWhat = "slabs of KV";
  rank.stream = CreateStream(high_priority);
  rank.done = CreateSleepyEvent();
  for (size_t i = 0; i < moves_max; ++i) {
    Ids& ids = rank.ids.emplace_back();
    ASSIGN_OR_RETURN(ids.device, DeviceBuffer::Create(ids_bytes, kWhat));
    ASSIGN_OR_RETURN(ids.host, PinnedBuffer::Create(ids_bytes, kWhat));
  }
  return TakeStatus("streams for slabs of KV");
}

absl::Status ShardMovers::RankMover::Open(size_t moves_max, size_t slab_bytes_max,
                                          bool high_priority) {
  // The smallest pieces are single layers. A page has an id, and one of a row.
  const KvLayout& layout = movers_.pages_.view().layout;
  const size_t layer_bytes = std::min(layout.BytesOf(0), layout.BytesOf(layout.layers - 1));
  const size_t ids_bytes = (slab_bytes_max / layer_bytes + 1) * 2 * sizeof(uint32_t);
  for (const CudaDevice* device : movers_.devices_) {
    device->Select();
    RETURN_IF_ERROR(OpenRank(ranks_.emplace_back(), moves_max, ids_bytes, high_priority));
  }
  first().Select();
  detours_ = CreateStream(high_priority);
  detoured_ = CreateSleepyEvent();
  return TakeStatus("streams for slabs of KV");
}

// The copy of some layers of a GPU's heads, without ids.
SlabPartParams ShardMovers::RankMover::PartOf(int rank, const Move& move,
                                              const LayerRun& run) const {
  const KvLayout& whole = movers_.pages_.view().layout;
  const PagedKv& own = movers_.pages_.view_of(rank);
  const LayerPart part = LayerPartOf(whole, movers_.pages_.ranks(), rank, run.first);
  const PagePlace place = PlaceOf(own, run.first);
  const bool several = run.count > 1;
  const int64_t to_next =
      several ? PlaceOf(own, run.first + run.step).first - place.first : int64_t{0};
  std::byte* const detour = DetourOf(move);
  std::byte* const slab = detour == nullptr ? move.slab : detour;
  return {
      .arena = place.first,
      .block_stride = place.stride,
      .blocks = static_cast<uint32_t>(move.pieces.pages.size()),
      .layers = static_cast<uint32_t>(run.count),
      .layer_stride = to_next,
      .layer_bytes = static_cast<uint32_t>(own.layout.BytesOf(run.first)),
      .codes_bytes = static_cast<uint32_t>(part.codes_bytes),
      .slab = slab + whole.BytesBefore(run.first) - move.pieces.offset,
      .slab_block_stride = static_cast<uint32_t>(move.pieces.bytes),
      .slab_layer_stride = static_cast<uint32_t>(whole.BytesOf(run.first, run.first + run.step)),
      .codes_at = static_cast<uint32_t>(part.codes_at),
      .scales_at = static_cast<uint32_t>(part.scales_at),
      .scatter = move.scatter};
}

// Enqueues the copy of one GPU's heads, on that GPU.
void ShardMovers::RankMover::MoveRank(size_t rank, const Move& move, size_t index) {
  if (rank > 0 && IsOfFirst(move)) return;
  const KvLayout& whole = movers_.pages_.view().layout;
  const auto number = static_cast<int>(rank);
  const PagedKv& own = movers_.pages_.view_of(number);
  const DeviceSlabs::Pieces& pieces = move.pieces;
  const int32_t first = whole.LayerAt(pieces.offset);
  const int32_t last = whole.LayerAt(pieces.offset + pieces.bytes);
  PENSTOCK_CHECK_EQ(whole.BytesBefore(first), pieces.offset);
  PENSTOCK_CHECK_EQ(whole.BytesBefore(last), pieces.offset + pieces.bytes);
  const Rank& used = ranks_[rank];
  const Ids& ids = used.ids[index];
  const std::vector<uint32_t> all = IdsOf(own, move);
  const size_t ids_bytes = all.size() * sizeof(uint32_t);
  PENSTOCK_CHECK_LE(ids_bytes, ids.host.bytes());
  std::ranges::copy(all, ids.host.as<uint32_t>());
  CopyToDevice(ids.device.as<void>(), ids.host.as<void>(), ids_bytes, used.stream);
  for (const LayerRun& run : RunsOfLayers(own, first, last)) {
    SlabPartParams part = PartOf(number, move, run);
    part.block_ids = ids.device.as<uint32_t>() + (run.in_rows ? pieces.pages.size() : 0);
    MoveSlabPart(part, movers_.processors_, used.stream);
  }
  RecordEvent(used.done, used.stream);
}

void ShardMovers::RankMover::AwaitRank(size_t rank) {
  movers_.devices_[rank]->Select();
  SynchronizeEvent(ranks_[rank].done);
}

// Copies slabs that are to be scattered to the host, or those that were gathered from there, and
// waits.
void ShardMovers::RankMover::CopyDetours(std::span<const Move> moves, bool scatter) {
  if (movers_.peer_access_.ok()) return;
  first().Select();
  for (const Move& move : moves) {
    std::byte* const detour = DetourOf(move);
    if (move.scatter != scatter || detour == nullptr) continue;
    const size_t bytes = move.pieces.total();
    scatter ? CopyToHost(detour, move.slab, bytes, detours_)
            : CopyToDevice(move.slab, detour, bytes, detours_);
    ++movers_.detours_;
  }
  RecordEvent(detoured_, detours_);
  SynchronizeEvent(detoured_);
}

absl::Status ShardMovers::RankMover::MoveAll(std::span<const Move> moves) {
  PENSTOCK_CHECK_LE(moves.size(), ranks_.front().ids.size());
  CopyDetours(moves, /*scatter=*/true);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    movers_.devices_[rank]->Select();
    for (size_t i = 0; i < moves.size(); ++i) MoveRank(rank, moves[i], i);
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) AwaitRank(rank);
  CopyDetours(moves, /*scatter=*/false);
  first().Select();
  return TakeStatus("slabs of KV");
}

ShardMovers::ShardMovers(Devices devices, const ShardedPages& pages, int processors)
    : devices_(std::move(devices)),
      pages_(pages),
      processors_(processors),
      peer_access_(TryAll(devices_)) {}

absl::StatusOr<std::unique_ptr<ShardMovers>> ShardMovers::Create(Devices devices,
                                                                 const ShardedPages& pages,
                                                                 int processors) {
  PENSTOCK_CHECK_EQ(static_cast<int>(devices.size()), pages.ranks());
  const LayerPart part = LayerPartOf(pages.view().layout, pages.ranks(), 0, 0);  // bf16 fits
  if (part.codes_bytes % kUnit != 0 || part.scales_bytes % kUnit != 0) {
    return FailedPrecondition(
        "each of {} GPUs has {} bytes of codes and {} of scales of a layer; slabs of several GPUs "
        "need multiples of {}",
        pages.ranks(), part.codes_bytes, part.scales_bytes, kUnit);
  }
  return std::unique_ptr<ShardMovers>(new ShardMovers(std::move(devices), pages, processors));
}

absl::StatusOr<std::unique_ptr<SpreadPages::Mover>> ShardMovers::OpenMover(size_t moves_max,
                                                                           size_t slab_bytes_max,
                                                                           bool high_priority) {
  auto mover = std::make_unique<RankMover>(*this);
  RETURN_IF_ERROR(mover->Open(moves_max, slab_bytes_max, high_priority));
  return mover;
}

bool ShardMovers::OnAllocated(std::byte* memory, size_t bytes) {
  if (peer_access_.ok()) return true;
  auto detour = PinnedBuffer::Create(bytes, "slabs of KV");
  if (!detour.ok()) return false;
  MutexLock lock(mutex_);
  detour_memory_[memory] = *std::move(detour);
  return true;
}

void ShardMovers::OnFreed(std::byte* memory) {
  PinnedBuffer freed;
  MutexLock lock(mutex_);
  const auto found = detour_memory_.find(memory);
  if (found == detour_memory_.end()) return;
  freed = std::move(found->second);
  detour_memory_.erase(found);
}

std::byte* ShardMovers::DetourOf(std::byte* slab) {
  if (peer_access_.ok()) return nullptr;
  MutexLock lock(mutex_);
  const auto after = detour_memory_.upper_bound(slab);
  PENSTOCK_CHECK(after != detour_memory_.begin(), "a slab outside the memory for slabs");
  const auto& [memory, detour] = *std::prev(after);
  const auto at = static_cast<size_t>(slab - memory);
  PENSTOCK_CHECK_LT(at, detour.bytes());
  return detour.as<std::byte>() + at;
}

}  // namespace penstock::cuda
