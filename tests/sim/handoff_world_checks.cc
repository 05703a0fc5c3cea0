#include <algorithm>
#include <cstring>

#include "tests/sim/handoff_world.h"
#include "tests/sim/handoff_world_bounds.h"

namespace penstock::sim {

// Content.

uint64_t HandoffWorld::Word(const Attempt& attempt, uint32_t block, int32_t layer,
                            uint32_t valid) const {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint64_t part : {attempt.key.session, uint64_t{attempt.key.epoch}, attempt.key.nonce,
                              uint64_t{block}, static_cast<uint64_t>(layer), uint64_t{valid}}) {
    hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

// A block that is not full has other content than the full one: sent early, it is seen.
void HandoffWorld::Fill(const PagedKv& kv, const Attempt& attempt, uint32_t block, int32_t layer,
                        uint32_t last_token) {
  const auto size = static_cast<uint32_t>(kLayout.block_tokens);
  const uint32_t valid = std::min(size, last_token - block * size);
  uint64_t word = Word(attempt, block, layer, valid);
  std::byte* data = kv.Layer(attempt.pages[block].id(), layer);
  for (size_t i = 0; i < kLayout.LayerBytes(); i += sizeof(word), ++word) {
    std::memcpy(data + i, &word, sizeof(word));
  }
}

void HandoffWorld::CheckContent(const Attempt& attempt, std::string_view when) {
  const PagedKv kv = decodes_[attempt.decode->host - 100]->pool->view();
  const auto size = static_cast<uint32_t>(kLayout.block_tokens);
  if (attempt.received.blocks.size() != static_cast<size_t>(kLayout.BlocksFor(attempt.tokens))) {
    simulation_.Fail("committed with too few blocks");
    return;
  }
  for (uint32_t b = 0; b < attempt.received.blocks.size(); ++b) {
    const uint32_t valid = std::min(size, attempt.tokens - b * size);
    for (int32_t l = 0; l < kLayout.layers; ++l) {
      uint64_t word = Word(attempt, b, l, valid);
      const std::byte* data = kv.Layer(attempt.received.blocks[b].id(), l);
      for (size_t i = 0; i < kLayout.LayerBytes(); i += sizeof(word), ++word) {
        if (std::memcmp(data + i, &word, sizeof(word)) == 0) continue;
        simulation_.Fail(fmt::format("{}: block {} of layer {} is wrong {}",
                                     HandoffKeyText(attempt.key), b, l, when));
        return;
      }
    }
  }
}

// Invariants.

void HandoffWorld::PollAll() {
  for (const auto& worker : prefills_) {
    if (worker->process->paused_until > simulation_.now()) continue;
    for (int pass = 0; worker->sender->Poll(); ++pass) {
      if (pass == 10000) simulation_.Fail("the sender's thread spins");
      if (simulation_.failed()) return;
    }
  }
}

void HandoffWorld::Tick() {
  for (const auto& worker : decodes_) {
    if (worker->process->paused_until <= simulation_.now()) worker->receiver->Tick();
  }
  simulation_.After(kTick, [this] { Tick(); });
}

void HandoffWorld::CheckAll() {
  for (const auto& worker : prefills_) CheckPrefill(*worker);
  for (const auto& worker : decodes_) CheckDecode(*worker);
  CheckBounds();
}

// The pool holds what engines and open handoffs hold, and nothing else.
void HandoffWorld::CheckPrefill(const Worker& worker) {
  if (worker.process->paused_until > simulation_.now()) return;  // Its thread has not run.
  int64_t held = 0;
  size_t open = 0;
  for (const auto& attempt : attempts_) {
    if (attempt->prefill != worker.process) continue;
    const bool sending = attempt->sender == Side::kOpen;
    open += sending;
    if (!attempt->pages.empty()) {
      held += static_cast<int64_t>(attempt->pages.size());
    } else if (sending && attempt->computed == attempt->tokens) {
      held += kLayout.BlocksFor(attempt->tokens);
    }
  }
  const int64_t used = worker.pool->blocks_used();
  // More handoffs than are open: some have ended and wait for their Puts.
  const bool retiring = worker.sender->handoffs() > open;
  if (used < held || (used > held && !retiring)) {
    simulation_.Fail(fmt::format("{}: {} blocks are used and {} are held, {} handoffs for {} open",
                                 worker.process->name, used, held, worker.sender->handoffs(),
                                 open));
  }
  if (worker.sender->staging_used() > kStaging) {
    simulation_.Fail(
        fmt::format("{} stages {} bytes", worker.process->name, worker.sender->staging_used()));
  }
}

void HandoffWorld::CheckDecode(const Worker& worker) {
  int64_t held = 0;
  for (const auto& attempt : attempts_) {
    if (attempt->decode != worker.process) continue;
    if (attempt->receiver == Side::kOpen && attempt->admitted) held += attempt->blocks;
    held += static_cast<int64_t>(attempt->received.blocks.size());
    held += attempt->received.credit.blocks();
  }
  const KvReceiverLoad load = worker.receiver->load();
  const int64_t used = worker.pool->blocks_used() + worker.pool->blocks_reserved();
  if (used < held + load.quarantined_blocks || (used > held && load.quarantined_blocks == 0)) {
    simulation_.Fail(
        fmt::format("{}: {} blocks are used or reserved, {} are held and {} in "
                    "quarantine",
                    worker.process->name, used, held, load.quarantined_blocks));
  }
  if (load.staging_used > kStaging || load.waiting > kWaitingMax) {
    simulation_.Fail(fmt::format("{}: {} bytes staged, {} wait", worker.process->name,
                                 load.staging_used, load.waiting));
  }
}

// A cancelled request ends on every process that lives and runs.
void HandoffWorld::CheckBounds() {
  for (const auto& attempt : attempts_) {
    if (const auto& stream = attempt->stream) {
      const bool runs = attempt->prefill->paused_until <= simulation_.now();
      if ((attempt->sender == Side::kOpen && stream->prefill_told() && runs) ||
          (attempt->receiver == Side::kOpen && stream->decode_told())) {
        simulation_.Fail(
            fmt::format("{} is still open and its stream has ended", HandoffKeyText(attempt->key)));
      }
    }
    if (!attempt->cancelled) continue;
    const auto check = [&](const Process& process, Side side) {
      const TimePoint from = std::max(attempt->cancelled_at, process.paused_until);
      if (side != Side::kOpen || !process.alive || simulation_.now() <= from + kEndBound) return;
      simulation_.Fail(fmt::format("{} is still open at {}, {:.0f} ms after it was cancelled",
                                   HandoffKeyText(attempt->key), process.name,
                                   Milliseconds(simulation_.now() - from)));
    };
    check(*attempt->prefill, attempt->sender);
    check(*attempt->decode, attempt->receiver);
  }
}

void HandoffWorld::CheckEmpty() {
  for (const auto& worker : prefills_) {
    if (worker->pool->blocks_used() + worker->pool->blocks_reserved() > 0 ||
        worker->sender->handoffs() > 0 || worker->sender->staging_used() > 0) {
      simulation_.Fail(fmt::format("{} ends with {} blocks, {} handoffs and {} bytes staged",
                                   worker->process->name, worker->pool->blocks_used(),
                                   worker->sender->handoffs(), worker->sender->staging_used()));
    }
  }
  for (const auto& worker : decodes_) {
    const KvReceiverLoad load = worker->receiver->load();
    if (worker->pool->blocks_used() + worker->pool->blocks_reserved() > 0 || load.handoffs > 0 ||
        load.waiting > 0 || load.staging_used > 0) {
      simulation_.Fail(
          fmt::format("{} ends with {} blocks, {} handoffs, {} waiting and {} bytes "
                      "staged",
                      worker->process->name, worker->pool->blocks_used(), load.handoffs,
                      load.waiting, load.staging_used));
    }
  }
  if (!hostile() && totals_.committed != static_cast<int64_t>(requests_.size())) {
    simulation_.Fail(fmt::format("{} of {} requests were committed, and nothing stood in their way",
                                 totals_.committed, requests_.size()));
  }
}

}  // namespace penstock::sim
