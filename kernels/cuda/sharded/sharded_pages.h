#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/cuda_pages.h"

namespace penstock::cuda {

// This room, kernels/cuda/sharded, has the pages of several GPUs that compute one model together.
// It may use base/, kernels/ and kernels/cuda.

// Owns pages whose heads are divided, in order, among several GPUs. The host reads and writes whole
// pages, as with one GPU; each GPU's kernels see only its own heads. Of latents every GPU has whole
// pages: the host reads those of the first, and writes all. Thread-safe, as CudaPages is.
class ShardedPages final : public PageCopier {
 public:
  // All `ranks` have equal layouts and equally many blocks.
  explicit ShardedPages(std::vector<std::unique_ptr<CudaPages>> ranks);

  // The whole pages. The arena address is not accessible memory; only its copier is usable.
  const PagedKv& view() const { return view_; }
  int ranks() const { return static_cast<int>(ranks_.size()); }
  // Says where each block's row is, on every GPU. Called once, before the pages are used, if all
  // ranks have room for rows. `rows` belongs to the pool of view(), and outlives every use of the
  // pages.
  void SetRows(const WindowRowsView* rows);
  const PagedKv& view_of(int rank) const { return ranks_[static_cast<size_t>(rank)]->view(); }

  // Bytes beyond the last layer read as zeros, and writes to them are ignored.
  void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes, std::byte* host) override;
  void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
             const std::byte* host) override;
  PageCopier* first_copies() override;

 private:
  // The same pages without their second copies.
  class FirstCopier final : public PageCopier {
   public:
    explicit FirstCopier(ShardedPages& of) : of_(of) {}
    void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes,
              std::byte* host) override {
      of_.ReadOf(CudaPages::Copies::kFirst, pages, offset, bytes, host);
    }
    void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
               const std::byte* host) override {
      of_.WriteOf(CudaPages::Copies::kFirst, pages, offset, bytes, host);
    }

   private:
    ShardedPages& of_;
  };

  KvLayout LayoutOf(CudaPages::Copies copies) const {
    return copies == CudaPages::Copies::kFirst ? view_.layout.FirstCopies() : view_.layout;
  }
  void ReadOf(CudaPages::Copies copies, std::span<const uint32_t> pages, size_t offset,
              size_t bytes, std::byte* host);
  void WriteOf(CudaPages::Copies copies, std::span<const uint32_t> pages, size_t offset,
               size_t bytes, const std::byte* host);

  const std::vector<std::unique_ptr<CudaPages>> ranks_;
  std::vector<WindowRowsView> rank_rows_;  // of each rank, once set
  FirstCopier first_copier_{*this};
  PagedKv view_;
};

}  // namespace penstock::cuda
