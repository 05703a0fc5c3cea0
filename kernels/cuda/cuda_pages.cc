#include "kernels/cuda/cuda_pages.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/slabs.h"

namespace penstock::cuda {
namespace {

constexpr size_t kUnit = 16;  // granularity of MoveSlab in bytes

// Ends the process after a device error: the pages are lost with the GPU.
void CheckDevice(const char* what) { PENSTOCK_CHECK_EQ(Message(TakeStatus(what)), ""); }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaPages>> CudaPages::Create(const CudaDevice& device,
                                                             const KvLayout& layout,
                                                             const Room& room,
                                                             const Options& options) {
  if (layout.LayerBytes() % kUnit != 0) {  // second copies are whole rows of bf16
    return InvalidArgument("a layer of a block has {} bytes; pages on a GPU need multiples of {}",
                           layout.LayerBytes(), kUnit);
  }
  std::unique_ptr<CudaPages> pages(new CudaPages(device, options));
  RETURN_IF_ERROR(pages->Allocate(layout, room));
  return pages;
}

absl::Status CudaPages::Allocate(const KvLayout& layout, const Room& room) {
  device_.Select();
  const auto blocks = static_cast<size_t>(room.blocks);
  const size_t bytes = room.rows == 0
                           ? layout.BlockStride() * blocks
                           : layout.FullStride() * blocks +
                                 layout.RowStride() * static_cast<size_t>(room.rows + kSpareRows);
  ASSIGN_OR_RETURN(arena_, DeviceBuffer::Create(bytes, "KV pages"));
  FillDevice(arena_.as<void>(), 0, bytes, device_.stream());
  Synchronize(device_.stream());
  view_ = {
      .arena = arena_.as<std::byte>(), .blocks = room.blocks, .layout = layout, .copier = this};
  stream_ = CreateStream(/*high_priority=*/false);
  MutexLock lock(mutex_);
  for (int i = 0; i < options_.slots; ++i) {
    Slot& slot = slots_.emplace_back();
    const size_t ids_bytes = options_.slot_bytes / kUnit * sizeof(uint32_t);
    ASSIGN_OR_RETURN(slot.device_ids, DeviceBuffer::Create(ids_bytes, "ring of KV pages"));
    ASSIGN_OR_RETURN(slot.device_slab,
                     DeviceBuffer::Create(options_.slot_bytes, "ring of KV pages"));
    ASSIGN_OR_RETURN(slot.ids, PinnedBuffer::Create(ids_bytes, "ring of KV pages"));
    ASSIGN_OR_RETURN(slot.slab, PinnedBuffer::Create(options_.slot_bytes, "ring of KV pages"));
    slot.done = CreateEvent();
  }
  return TakeStatus("a ring of KV pages");
}

CudaPages::~CudaPages() {
  device_.Select();
  if (stream_ != nullptr) Synchronize(stream_);
  MutexLock lock(mutex_);
  for (const Slot& slot : slots_) DestroyEvent(slot.done);
  DestroyStream(stream_);
}

void CudaPages::AddChunks(const PagePiece& piece, std::span<const uint32_t> ids,
                          std::vector<Chunk>& chunks) const {
  const size_t at_once = options_.slot_bytes / piece.bytes;
  for (size_t first = 0; at_once > 0 && first < ids.size(); first += at_once) {
    chunks.push_back({.piece = piece,
                      .ids = ids.subspan(first, std::min(at_once, ids.size() - first)),
                      .index = first});
  }
  // A page's piece is larger than a slot: divide each page into several chunks.
  for (size_t page = 0; at_once == 0 && page < ids.size(); ++page) {
    for (size_t from = 0; from < piece.bytes; from += options_.slot_bytes) {
      PagePiece part = piece;
      part.place += from;
      part.at += from;
      part.bytes = std::min(options_.slot_bytes, piece.bytes - from);
      chunks.push_back({.piece = part, .ids = ids.subspan(page, 1), .index = page});
    }
  }
}

// Blocks are as far apart without their second copies as their first copies lie.
PagedKv CudaPages::FirstView() const {
  PagedKv first = view_;
  first.layout = view_.layout.FirstCopies();
  first.rows = nullptr;
  return first;
}

PageCopier* CudaPages::first_copies() {
  return view_.layout.span > 0 && view_.rows != nullptr ? &first_copier_ : nullptr;
}

CudaPages::Copy CudaPages::Plan(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                                size_t bytes, PageAccess access) const {
  PENSTOCK_CHECK(offset % kUnit == 0 && bytes % kUnit == 0 && bytes > 0);
  Copy copy;
  if (kv.rows != nullptr) copy.rows = RowsOf(*kv.rows, pages, access);
  for (const PagePiece& piece : PiecesOf(kv, offset, bytes)) {
    AddChunks(piece, piece.in_rows ? std::span<const uint32_t>(copy.rows) : pages, copy.chunks);
  }
  return copy;
}

void CudaPages::Launch(const Slot& slot, const Chunk& chunk, bool scatter) {
  std::ranges::copy(chunk.ids, slot.ids.as<uint32_t>());
  CopyToDevice(slot.device_ids.as<void>(), slot.ids.as<void>(), chunk.ids.size_bytes(), stream_);
  MoveSlab({.arena = chunk.piece.arena,
            .block_stride = chunk.piece.stride,
            .offset = static_cast<int64_t>(chunk.piece.place),
            .piece_bytes = static_cast<uint32_t>(chunk.piece.bytes),
            .blocks = static_cast<uint32_t>(chunk.ids.size()),
            .block_ids = slot.device_ids.as<uint32_t>(),
            .slab = slot.device_slab.as<std::byte>(),
            .scatter = scatter},
           options_.processors, stream_);
}

// Waits for the copy into the slot, then moves the bytes into host memory.
void CudaPages::Take(Slot& slot, const Move& move) {
  if (!slot.chunk) return;
  SynchronizeEvent(slot.done);
  CheckDevice("reading KV pages");
  Visit(slot, *slot.chunk, move);
  slot.chunk.reset();
}

void CudaPages::Visit(const Slot& slot, const Chunk& chunk, const Move& move) {
  const size_t bytes = chunk.piece.bytes;
  for (size_t i = 0; i < chunk.ids.size(); ++i) {
    move({.index = chunk.index + i,
          .at = chunk.piece.at,
          .bytes = bytes,
          .ring = slot.slab.as<std::byte>() + i * bytes});
  }
}

void CudaPages::ReadBy(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                       size_t bytes, const Move& move) {
  device_.Select();
  MutexLock lock(mutex_);
  const Copy copy = Plan(kv, pages, offset, bytes, PageAccess::kRead);
  size_t turn = 0;
  for (const Chunk& chunk : copy.chunks) {
    Slot& slot = slots_[turn++ % slots_.size()];
    Take(slot, move);
    Launch(slot, chunk, /*scatter=*/false);
    CopyToHost(slot.slab.as<void>(), slot.device_slab.as<void>(), chunk.total(), stream_);
    RecordEvent(slot.done, stream_);
    slot.chunk = chunk;
  }
  for (size_t i = 0; i < slots_.size(); ++i) Take(slots_[turn++ % slots_.size()], move);
}

void CudaPages::WriteBy(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                        size_t bytes, const Move& move) {
  device_.Select();
  MutexLock lock(mutex_);
  const Copy copy = Plan(kv, pages, offset, bytes, PageAccess::kWrite);
  size_t turn = 0;
  for (const Chunk& chunk : copy.chunks) {
    Slot& slot = slots_[turn % slots_.size()];
    if (turn++ >= slots_.size()) SynchronizeEvent(slot.done);
    Visit(slot, chunk, move);
    CopyToDevice(slot.device_slab.as<void>(), slot.slab.as<void>(), chunk.total(), stream_);
    Launch(slot, chunk, /*scatter=*/true);
    RecordEvent(slot.done, stream_);
  }
  Synchronize(stream_);
  CheckDevice("writing KV pages");
}

void CudaPages::ReadOf(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                       size_t bytes, std::byte* host) {
  const size_t end = std::max(offset, kv.layout.PayloadBytes());
  if (kv.rows != nullptr && offset + bytes > end) {  // behind the last layer there is no memory
    for (size_t i = 0; i < pages.size(); ++i) {
      std::fill_n(host + i * bytes + (end - offset), offset + bytes - end, std::byte{0});
    }
  }
  ReadBy(kv, pages, offset, bytes, [=](const Portion& portion) {
    std::copy_n(portion.ring, portion.bytes, host + portion.index * bytes + portion.at);
  });
}

void CudaPages::WriteOf(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                        size_t bytes, const std::byte* host) {
  WriteBy(kv, pages, offset, bytes, [=](const Portion& portion) {
    std::copy_n(host + portion.index * bytes + portion.at, portion.bytes, portion.ring);
  });
}

void CudaPages::Read(std::span<const uint32_t> pages, size_t offset, size_t bytes,
                     std::byte* host) {
  ReadOf(view_, pages, offset, bytes, host);
}

void CudaPages::Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
                      const std::byte* host) {
  WriteOf(view_, pages, offset, bytes, host);
}

}  // namespace penstock::cuda
