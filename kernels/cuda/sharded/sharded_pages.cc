#include "kernels/cuda/sharded/sharded_pages.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/sharded/head_ranges.h"

namespace penstock::cuda {
namespace {

// Calls visit(address in the ring, offset in the whole piece, bytes) for each part of `range` that
// the portion contains.
template <class Visitor>
void VisitParts(const HeadRange& range, const CudaPages::Portion& portion, const Visitor& visit) {
  const size_t end = portion.at + portion.bytes;
  for (const HeadRange::Part& whole : range.parts) {
    HeadRange::Part part = whole;
    const size_t before = part.at < portion.at ? portion.at - part.at : 0;
    if (before >= part.bytes || part.at >= end) continue;
    part.at += before;
    part.in_whole += before;
    part.bytes = std::min(part.bytes - before, end - part.at);
    visit(portion.ring + (part.at - portion.at), part.in_whole, part.bytes);
  }
}

}  // namespace

ShardedPages::ShardedPages(std::vector<std::unique_ptr<CudaPages>> ranks)
    : ranks_(std::move(ranks)) {
  view_ = ranks_.front()->view();
  for (const auto& rank : ranks_) {
    PENSTOCK_CHECK(rank->view().layout == view_.layout && rank->view().blocks == view_.blocks);
  }
  if (!view_.layout.HasLatents()) view_.layout.kv_heads *= static_cast<int32_t>(ranks_.size());
  view_.copier = this;
}

void ShardedPages::SetRows(const WindowRowsView* rows) {
  for (const auto& rank : ranks_) {
    rank_rows_.push_back(RowsBehind(rank->view(), rows->row, rows->no_row));
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank]->SetRows(&rank_rows_[rank]);
  view_.rows = rows;
}

PageCopier* ShardedPages::first_copies() {
  return view_.layout.span > 0 && view_.rows != nullptr ? &first_copier_ : nullptr;
}

void ShardedPages::ReadOf(CudaPages::Copies copies, std::span<const uint32_t> pages, size_t offset,
                          size_t bytes, std::byte* host) {
  const KvLayout layout = LayoutOf(copies);
  const size_t payload = layout.PayloadBytes();
  const size_t kept = std::clamp(payload, offset, offset + bytes) - offset;
  for (size_t i = 0; i < pages.size(); ++i) {
    std::fill(host + i * bytes + kept, host + (i + 1) * bytes, std::byte{0});
  }
  const int readers = layout.HasLatents() ? 1 : ranks();  // all have the same latents
  for (int rank = 0; rank < readers; ++rank) {
    for (const HeadRange& range : RangesOfRank(layout, ranks(), rank, offset, bytes)) {
      const auto read = [&](const CudaPages::Portion& portion) {
        std::byte* piece = host + portion.index * bytes;
        VisitParts(range, portion, [&](std::byte* ring, size_t at, size_t size) {
          std::copy_n(ring, size, piece + at);
        });
      };
      ranks_[static_cast<size_t>(rank)]->ReadBy(pages, range.offset, range.bytes, read, copies);
    }
  }
}

void ShardedPages::WriteOf(CudaPages::Copies copies, std::span<const uint32_t> pages, size_t offset,
                           size_t bytes, const std::byte* host) {
  const KvLayout layout = LayoutOf(copies);
  for (int rank = 0; rank < ranks(); ++rank) {
    for (const HeadRange& range : RangesOfRank(layout, ranks(), rank, offset, bytes)) {
      const auto write = [&](const CudaPages::Portion& portion) {
        const std::byte* piece = host + portion.index * bytes;
        VisitParts(range, portion, [&](std::byte* ring, size_t at, size_t size) {
          std::copy_n(piece + at, size, ring);
        });
      };
      ranks_[static_cast<size_t>(rank)]->WriteBy(pages, range.offset, range.bytes, write, copies);
    }
  }
}

void ShardedPages::Read(std::span<const uint32_t> pages, size_t offset, size_t bytes,
                        std::byte* host) {
  ReadOf(CudaPages::Copies::kAll, pages, offset, bytes, host);
}

void ShardedPages::Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
                         const std::byte* host) {
  WriteOf(CudaPages::Copies::kAll, pages, offset, bytes, host);
}

}  // namespace penstock::cuda
