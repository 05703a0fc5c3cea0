#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/cuda_pages.h"

namespace penstock::cuda {

// Pages whose heads are spread over several GPUs, in order. The host sees whole pages, as of one
// GPU: what copies them need not know of it. Each GPU's kernels see its own.
class ShardedPages final : public PageCopier {
 public:
  // `ranks` have equal layouts and as many blocks.
  explicit ShardedPages(std::vector<std::unique_ptr<CudaPages>> ranks);

  // Of whole pages; its arena is no memory of anybody's, but for its copier.
  const PagedKv& view() const { return view_; }
  int ranks() const { return static_cast<int>(ranks_.size()); }
  const PagedKv& view_of(int rank) const { return ranks_[static_cast<size_t>(rank)]->view(); }

  // What is behind the last layer reads as zeros, and is not kept.
  void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes, std::byte* host) override;
  void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
             const std::byte* host) override;

 private:
  const std::vector<std::unique_ptr<CudaPages>> ranks_;
  PagedKv view_;
};

}  // namespace penstock::cuda
