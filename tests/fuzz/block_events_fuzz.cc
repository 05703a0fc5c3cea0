// A worker's KV events as bytes: whatever it says, the index stays whole and knows no more blocks
// than were named, and nothing is left of a worker that has gone.
#include <cstdint>

#include "base/check.h"
#include "base/clock.h"
#include "router/placement/prefix_view.h"

namespace penstock {
namespace {

size_t StoredBlocks(const v1::BlockEvents& batch) {
  size_t blocks = 0;
  for (const v1::BlockEvent& event : batch.events()) {
    blocks += event.stored().ids().size() / sizeof(BlockId);
  }
  return blocks;
}

void CheckBatch(PrefixView& view, v1::BlockEvents batch) {
  const uint32_t worker = *view.Join();
  view.OnStreamStarted(worker);
  batch.set_sequence(0);
  const absl::Status status = view.OnEvents(worker, batch);
  const uint64_t blocks = view.figures().blocks;
  PENSTOCK_CHECK(status.ok() ? blocks <= StoredBlocks(batch) : blocks == 0, "blocks from nowhere");
  if (status.ok()) {
    PENSTOCK_CHECK(!view.OnEvents(worker, batch).ok(), "a gap was not noticed");
    PrefixMatches matches;
    for (const v1::BlockEvent& event : batch.events()) {
      const std::vector<BlockId> ids = *BlockIdsOf(event.stored().ids());
      view.Find(ids, matches);
      PENSTOCK_CHECK(matches.of(worker).blocks <= ids.size(), "more than was asked for");
    }
  }
  view.OnStreamEnded(worker);
  view.Leave(worker);
  PENSTOCK_CHECK(view.figures().blocks == 0, "a worker that has gone left blocks");
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const penstock::SteadyClock kClock;
  static auto* const view = new penstock::PrefixView(kClock);
  penstock::v1::BlockEvents batch;
  if (!batch.ParseFromArray(data, static_cast<int>(size))) return 0;
  penstock::CheckBatch(*view, batch);
  return 0;
}
