#include "kernels/cuda/page_pieces.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::cuda {
namespace {

uint32_t RowOf(const WindowRowsView& rows, uint32_t page, PageAccess access) {
  const uint32_t row = rows.row[page];
  return row == rows.no_row && access == PageAccess::kWrite ? row + 1 : row;
}

// The largest power of two that divides the size of each layer, and so each of its addresses: few
// bits name a layer anywhere in the device's memory.
size_t UnitOf(const KvLayout& layout) {
  const size_t bytes = layout.LayerBytes() | layout.RecentBytes();
  return std::min<size_t>(bytes & (~bytes + 1), 4096);
}

}  // namespace

std::vector<PagePiece> PiecesOf(const PagedKv& kv, size_t offset, size_t bytes) {
  const KvLayout& layout = kv.layout;
  if (kv.rows == nullptr) {
    return {{.arena = kv.arena,
             .stride = static_cast<int64_t>(layout.BlockStride()),
             .place = offset,
             .bytes = bytes}};
  }
  std::vector<PagePiece> pieces;
  const size_t end = std::min(offset + bytes, layout.PayloadBytes());
  for (size_t from = offset; from < end;) {
    const int32_t layer = layout.LayerAt(from);
    const size_t begin = layout.BytesBefore(layer);
    const size_t size = std::min(end, begin + layout.BytesOf(layer)) - from;
    const bool in_rows = layout.group.Has(layer);
    const size_t place = kv.rows->place[static_cast<size_t>(layer)] + from - begin;
    if (!pieces.empty() && pieces.back().in_rows == in_rows) {
      pieces.back().bytes += size;  // the place of the next layer is behind that of this one
    } else {
      pieces.push_back(
          {.arena = in_rows ? kv.rows->arena : kv.arena,
           .stride = static_cast<int64_t>(in_rows ? kv.rows->row_stride : kv.rows->block_stride),
           .place = place,
           .at = from - offset,
           .bytes = size,
           .in_rows = in_rows});
    }
    from += size;
  }
  return pieces;
}

std::vector<uint32_t> RowsOf(const WindowRowsView& rows, std::span<const uint32_t> pages,
                             PageAccess access) {
  std::vector<uint32_t> found;
  found.reserve(pages.size());
  for (const uint32_t page : pages) found.push_back(RowOf(rows, page, access));
  return found;
}

size_t SlabPieceBytes(const KvLayout& layout) {
  return layout.span > 0 ? UnitOf(layout) : layout.LayerBytes();
}

SlabPieces SlabPiecesOf(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                        size_t bytes, PageAccess access) {
  const KvLayout& layout = kv.layout;
  if (kv.rows == nullptr || pages.empty()) {
    return {.arena = kv.arena,
            .stride = static_cast<int64_t>(layout.BlockStride()),
            .offset = static_cast<int64_t>(offset),
            .bytes = bytes,
            .ids = {pages.begin(), pages.end()}};
  }
  const size_t each = SlabPieceBytes(layout), unit = UnitOf(layout);
  const int32_t first = layout.LayerAt(offset), last = layout.LayerAt(offset + bytes);
  PENSTOCK_CHECK_EQ(layout.BytesBefore(first), offset);
  PENSTOCK_CHECK_EQ(layout.BytesBefore(last), offset + bytes);
  SlabPieces pieces{.arena = kv.arena,
                    .stride = static_cast<int64_t>(unit),
                    .offset = 0,
                    .bytes = each,
                    .ids = {}};
  pieces.ids.reserve(pages.size() * (bytes / each));
  const auto rows_at = static_cast<size_t>(kv.rows->arena - kv.arena);
  for (const uint32_t page : pages) {
    for (int32_t layer = first; layer < last; ++layer) {
      const size_t place = kv.rows->place[static_cast<size_t>(layer)];
      const size_t at = layout.group.Has(layer)
                            ? rows_at + RowOf(*kv.rows, page, access) * kv.rows->row_stride
                            : page * kv.rows->block_stride;
      for (size_t done = 0; done < layout.BytesOf(layer); done += each) {
        const size_t id = (at + place + done) / unit;
        PENSTOCK_CHECK_LE(id, UINT32_MAX);
        pieces.ids.push_back(static_cast<uint32_t>(id));
      }
    }
  }
  return pieces;
}

}  // namespace penstock::cuda
