#include "decode_worker/engine/swapped_session.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "kernels/page_copier.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<SwappedSession>> SwappedSession::SwapOut(
    std::vector<DecodeSequence>& choices, BlockPool& pool, TieredStore& store) {
  auto swapped = std::make_unique<SwappedSession>();
  std::map<uint32_t, size_t> place_of;  // by page: choices share full blocks
  std::vector<BlockRef> pages;
  for (const DecodeSequence& choice : choices) {
    std::vector<size_t>& places = swapped->places_.emplace_back();
    for (const BlockRef& block : std::span(choice.blocks).subspan(choice.passed)) {
      const auto [place, fresh] = place_of.emplace(block.id(), pages.size());
      if (fresh) pages.push_back(block.Share());
      if (fresh) swapped->rows_.push_back(block.holds_row());
      places.push_back(place->second);
    }
  }
  swapped->blocks_ = pages.size();
  std::vector<BlockRef> given_up = pool.Share(pages);
  ASSIGN_OR_RETURN(swapped->ticket_, store.SwapOut(pages));
  swapped->kv_ = pool.view();
  swapped->SaveRows(given_up);
  swapped->choices_ = std::move(choices);
  for (DecodeSequence& choice : swapped->choices_) {
    choice.blocks.clear();
    choice.table.clear();
  }
  pool.DropToLeave(std::move(given_up));
  return swapped;
}

std::vector<uint32_t> SwappedSession::WithRows(std::span<const BlockRef> pages) const {
  std::vector<uint32_t> ids;
  for (size_t i = 0; i < pages.size(); ++i) {
    if (rows_[i]) ids.push_back(pages[i].id());
  }
  return ids;
}

void SwappedSession::SaveRows(std::span<const BlockRef> pages) {
  const std::vector<uint32_t> ids = WithRows(pages);
  if (kv_.layout.span == 0 || ids.empty()) return;
  recent_.resize(ids.size() * kv_.layout.RowPayloadBytes());
  ReadRows(kv_, ids, recent_.data());
}

void SwappedSession::RestoreRows(std::span<const BlockRef> pages) {
  if (!recent_.empty()) WriteRows(kv_, WithRows(pages), recent_.data());
}

int64_t SwappedSession::growth() const {
  return std::min<int64_t>(session().choices_open, session().swap.blocks() - blocks());
}

void SwappedSession::SwapIn(std::vector<BlockRef> pages, TieredStore& store,
                            std::function<void()> on_arrived) {
  PENSTOCK_CHECK(!swapping_in());
  arrival_ = std::make_shared<Arrival>();
  for (size_t i = 0; i < pages.size(); ++i) {
    if (rows_[i]) choices_.front().session->growth.HoldRow(pages[i]);
  }
  store.SwapIn(std::move(ticket_), std::move(pages),
               [arrival = arrival_, on_arrived = std::move(on_arrived)](RestoreResult result) {
                 {
                   MutexLock lock(arrival->mutex);
                   arrival->result = std::move(result);
                 }
                 on_arrived();
               });
}

bool SwappedSession::arrived() const {
  if (!swapping_in()) return false;
  MutexLock lock(arrival_->mutex);
  return arrival_->result.has_value();
}

absl::StatusOr<std::vector<DecodeSequence>> SwappedSession::TakeChoices() {
  std::optional<RestoreResult> result;
  {
    MutexLock lock(arrival_->mutex);
    result = std::exchange(arrival_->result, std::nullopt);
  }
  PENSTOCK_CHECK(result.has_value());
  if (result->whole != blocks_) {
    return Unavailable(
        "{} of {} swapped-out blocks came back: the store has stopped, or host memory is damaged",
        result->whole, blocks_);
  }
  RestoreRows(result->pages);
  for (size_t i = 0; i < choices_.size(); ++i) {
    for (size_t k = 0; k < choices_[i].passed; ++k) choices_[i].Append({});
    for (const size_t place : places_[i]) choices_[i].Append(result->pages[place].Share());
    choices_[i].PassBlocks(choices_[i].passed);
  }
  return std::move(choices_);
}

}  // namespace penstock
