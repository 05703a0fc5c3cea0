#include "tests/kvstore/handoff/plain_slabs.h"

#include <cstring>

#include "base/crc32c.h"
#include "kernels/cuda/slabs.h"
#include "kvstore/wire/slab.h"
#include "tests/cuda/emulator/emulated_stream.h"

// The kernels' work without fibers, which ThreadSanitizer does not follow. What they compute is
// tests/cuda/kernels/slab_test.cc's matter.

namespace penstock {
namespace {

std::atomic<PlainSlabs*> watching{nullptr};

}  // namespace

PlainSlabs::PlainSlabs() { watching = this; }
PlainSlabs::~PlainSlabs() { watching = nullptr; }

void PlainSlabs::OnMove(bool scatter) {
  ++moves;
  std::unique_lock lock(mutex_);
  if (scatter || !held_) return;
  ++waiting_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !held_; });
  --waiting_;
}

void PlainSlabs::Hold() {
  std::lock_guard lock(mutex_);
  held_ = true;
}

void PlainSlabs::Release() {
  std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void PlainSlabs::AwaitHeld() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_ > 0; });
}

namespace cuda {

void MoveSlab(const SlabParams& params, int, void* stream) {
  emulator::Enqueue(stream, [params] {
    if (PlainSlabs* plain = watching) plain->OnMove(params.scatter);
    const size_t piece = params.piece_bytes;
    for (size_t b = 0; params.arena != nullptr && b < params.blocks; ++b) {
      std::byte* page = params.arena + params.block_ids[b] * params.block_stride + params.offset;
      std::byte* slab = params.slab + b * piece;
      std::memcpy(params.scatter ? page : slab, params.scatter ? slab : page, piece);
    }
    // In the last of the partials: the others are zero.
    if (params.partials == nullptr) return;
    const size_t bytes = piece * params.blocks;
    const auto chunks = SlabChunks(static_cast<int64_t>(bytes));
    std::memset(params.partials, 0, static_cast<size_t>(chunks) * sizeof(uint32_t));
    params.partials[chunks - 1] = Crc32c({params.slab, bytes});
  });
}

uint32_t SlabChecksum(std::span<const uint32_t> partials, int64_t) {
  return partials.empty() ? 0 : partials.back();
}

uint32_t ContinueChecksum(uint32_t checksum, std::span<const std::byte> more) {
  return Crc32c(more, checksum);
}

}  // namespace cuda
}  // namespace penstock
