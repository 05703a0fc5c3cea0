#include "decode_worker/engine/beam_pages.h"

#include <utility>

#include "kernels/page_copier.h"

namespace penstock {
namespace {

// A beam with the KV of `parent`, whose partial block, if there is one, is copied into `own`.
DecodeSequence CopyOf(const DecodeSequence& parent, BlockRef own, const PagedKv& kv) {
  DecodeSequence copy{.id = 0,
                      .session = parent.session,
                      .choice = 0,
                      .sampler = parent.sampler.Fork(),
                      .blocks = {},
                      .table = {},
                      .passed = 0,
                      .kept = parent.kept,
                      .tokens_held = parent.tokens_held,
                      .evicted = parent.evicted,
                      .last_token = 0,
                      .tail = parent.tail,
                      .freezes = {},
                      .guesses = {}};
  const size_t full = parent.blocks.size() - (own ? 1 : 0);
  for (size_t i = 0; i < parent.passed; ++i) copy.Append({});
  for (size_t i = parent.passed; i < full; ++i) copy.Append(parent.blocks[i].Share());
  copy.PassBlocks(parent.passed);
  if (!own) return copy;
  const uint32_t from = parent.blocks.back().id(), to = own.id();
  std::vector<std::byte> page(kv.layout.PayloadBytes());
  ReadPages(kv, {&from, 1}, 0, page.size(), page.data());
  WritePages(kv, {&to, 1}, 0, page.size(), page.data());
  copy.Append(std::move(own));
  return copy;
}

// Takes the last block of each beam that nothing continues.
std::vector<BlockRef> TakePartials(std::vector<DecodeSequence>& beams, std::span<const int> uses) {
  std::vector<BlockRef> partials;
  for (size_t i = 0; i < beams.size(); ++i) {
    if (uses[i] > 0) continue;
    partials.push_back(std::move(beams[i].blocks.back()));
    beams[i].blocks.pop_back();
  }
  return partials;
}

}  // namespace

std::vector<DecodeSequence> ForkBeams(std::vector<DecodeSequence> beams,
                                      std::span<const BeamChild> children, const PagedKv& kv) {
  const bool partial = beams.front().tokens_held % kv.layout.block_tokens != 0;
  std::vector<int> uses(beams.size());
  for (const BeamChild& child : children) ++uses[static_cast<size_t>(child.parent)];
  std::vector<BlockRef> spare;
  if (partial) spare = TakePartials(beams, uses);
  const auto own_block = [&]() -> BlockRef {
    if (!partial) return {};
    if (spare.empty()) {
      BlockCredit& growth = beams.front().session->growth;
      BlockRef fresh = std::move(growth.Take(1).front());
      growth.HoldRow(fresh);
      return fresh;
    }
    BlockRef taken = std::move(spare.back());
    spare.pop_back();
    return taken;
  };
  std::vector<DecodeSequence> next;
  for (const BeamChild& child : children) {
    const auto parent = static_cast<size_t>(child.parent);
    const bool last = --uses[parent] == 0;
    next.push_back(last ? std::move(beams[parent]) : CopyOf(beams[parent], own_block(), kv));
    next.back().choice = static_cast<uint32_t>(next.size()) - 1;
    next.back().last_token = child.token;
    next.back().sampler.Observe(child.token);
  }
  return next;
}

}  // namespace penstock
