#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/paged_kv.h"

namespace penstock::cuda {

// Finds the bytes of pages in device memory. A page has all its layers in one piece; or the layers
// of the window group are in a row, apart from the others (PagedKv::rows). Behind the pool's rows
// there are two more, which belong to no block. A block without a row is read from the first of
// them, which stays zero, and written to the second. Pure functions; any thread may call them.
inline constexpr int64_t kSpareRows = 2;

enum class PageAccess : uint8_t { kRead, kWrite };

// Bytes of each page that lie in one piece.
struct PagePiece {
  std::byte* arena = nullptr;  // of the blocks, or of the rows
  int64_t stride = 0;          // from one block, or row, to the next, in bytes
  size_t place = 0;            // in the block or row, in bytes
  size_t at = 0;               // from the first byte that was asked for
  size_t bytes = 0;
  bool in_rows = false;  // rows are counted, not blocks
};
// The pieces of bytes [offset, offset + bytes), in order. What is behind the last layer of pages
// with rows is in none.
std::vector<PagePiece> PiecesOf(const PagedKv& kv, size_t offset, size_t bytes);
// The rows of pages with rows.
std::vector<uint32_t> RowsOf(const WindowRowsView& rows, std::span<const uint32_t> pages,
                             PageAccess access);

// Pieces of one size, as MoveSlab takes them: piece i begins at arena + ids[i] * stride + offset.
struct SlabPieces {
  std::byte* arena = nullptr;
  int64_t stride = 0;
  int64_t offset = 0;
  size_t bytes = 0;
  std::vector<uint32_t> ids;
};
// The size of the pieces of pages with rows: a layer, or, with a span, whose second copies have
// another size than the first, a part of a layer that divides both.
size_t SlabPieceBytes(const KvLayout& layout);
// Bytes [offset, offset + bytes) of each page, one page after the other: a piece for each page, or,
// of pages with rows, SlabPieceBytes of its layers, which must be whole.
SlabPieces SlabPiecesOf(const PagedKv& kv, std::span<const uint32_t> pages, size_t offset,
                        size_t bytes, PageAccess access);

}  // namespace penstock::cuda
