#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/page_copier.h"
#include "kvstore/cache/block_pool.h"

namespace penstock {

// A pool as a GPU's: its arena has addresses, but whoever touches one crashes; only the copier gets
// at the pages.
class FarPages final : public PageCopier {
 public:
  FarPages(const KvLayout& layout, int64_t blocks)
      : bytes_(layout.BlockStride() * static_cast<size_t>(blocks)), memory_(bytes_) {
    void* arena = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(arena, MAP_FAILED);
    view_ = {.arena = static_cast<std::byte*>(arena),
             .blocks = blocks,
             .layout = layout,
             .copier = this};
  }
  ~FarPages() override { munmap(view_.arena, bytes_); }

  const PagedKv& view() const { return view_; }

  void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes,
            std::byte* host) override {
    for (const uint32_t page : pages) {
      std::memcpy(host, memory_.data() + page * view_.layout.BlockStride() + offset, bytes);
      host += bytes;
    }
  }
  void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
             const std::byte* host) override {
    for (const uint32_t page : pages) {
      std::memcpy(memory_.data() + page * view_.layout.BlockStride() + offset, host, bytes);
      host += bytes;
    }
  }

 private:
  const size_t bytes_;
  std::vector<std::byte> memory_;
  PagedKv view_;
};

}  // namespace penstock
