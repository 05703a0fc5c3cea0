#pragma once

// One model with its pages on the CPU, on one emulated GPU, and on several. NCCL is a fake.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "kernels/buffer.h"
#include "kernels/cuda/sharded/head_ranges.h"
#include "kernels/page_copier.h"
#include "model/cuda/ranks/tensor_parallel_runner.h"
#include "model/forward/transformer_runner.h"
#include "tests/cuda/runner/prompt_tokens.h"
#include "worker/model/nccl_ranks.h"

namespace penstock {

inline constexpr int32_t kPositions = 96;
inline constexpr int64_t kBlocks = kPositions / 16 * 3;  // of three sequences

inline ModelConfig SmallConfig() {
  return {.layers = 2,
          .hidden = 64,
          .intermediate = 72,  // of four GPUs, the third has half of a range and the fourth none
          .heads = 8,
          .kv_heads = 4,
          .head_dim = 64,
          .vocab = 101,
          .max_position = kPositions};
}

// The format of a rig's pages, which may be a dtype alone.
struct RigFormat {
  RigFormat(KvDtype dtype) : format{.dtype = dtype} {}                 // NOLINT(google-explicit-*)
  RigFormat(const KvPageFormat& page_format) : format(page_format) {}  // NOLINT(google-explicit-*)
  KvPageFormat format;
};

struct Feed {
  int sequence;
  std::vector<uint32_t> tokens;
  int32_t position;
  bool wants_logits = true;
  int32_t evicted = 0;
};

// A runner and pages for three sequences.
class Rig {
 public:
  virtual ~Rig() = default;
  virtual ModelRunner& runner() = 0;
  const PagedKv& kv() const { return kv_; }

  std::vector<float> Step(const std::vector<Feed>& feeds) {
    std::vector<SequenceStep> steps;
    int64_t wanted = 0;
    for (const Feed& feed : feeds) {
      steps.push_back({.tokens = feed.tokens,
                       .position = feed.position,
                       .blocks = Table(feed.sequence),
                       .evicted = feed.evicted,
                       .wants_logits = feed.wants_logits});
      wanted += feed.wants_logits ? 1 : 0;
    }
    std::vector<float> logits(wanted * runner().vocab());
    const absl::Status status =
        runner().Step({.sequences = steps,
                       .kv = kv_,
                       .logits = {logits.data(), {wanted, runner().vocab()}},
                       .on_layers_done = on_layers_done,
                       .layers_per_group = 1,
                       .on_queries = on_queries,
                       .observed = observed,
                       .meanwhile = meanwhile});
    EXPECT_EQ(Message(status), "");
    return logits;
  }
  std::span<const uint32_t> Table(int sequence) const { return tables_[sequence]; }
  // The bytes of a sequence's pages, in all layers.
  std::vector<std::byte> Pages(int sequence) const {
    const size_t bytes = kv_.layout.PayloadBytes();
    std::vector<std::byte> pages(Table(sequence).size() * bytes);
    ReadPages(kv_, Table(sequence), 0, bytes, pages.data());
    return pages;
  }
  void TakePages(const Rig& other, int sequence) {
    const std::vector<std::byte> pages = other.Pages(sequence);
    WritePages(kv_, Table(sequence), 0, kv_.layout.PayloadBytes(), pages.data());
  }

  std::function<void(int32_t, int32_t)> on_layers_done;
  std::function<void(int32_t, View<const float, 2>)> on_queries;
  std::vector<RowRange> observed;
  std::function<void()> meanwhile;

 protected:
  void SetPages(const PagedKv& kv) {
    kv_ = kv;
    for (uint32_t block = 0; block < kBlocks; ++block) tables_[block % 3].push_back(block);
  }
  static KvLayout LayoutOf(const ModelRunner& runner, const RigFormat& of) {
    return runner.kv_layout().In(of.format);
  }

 private:
  PagedKv kv_;
  std::vector<uint32_t> tables_[3];
};

class CpuRig final : public Rig {
 public:
  explicit CpuRig(const Weights& weights, const RigFormat& format = KvDtype::kBf16)
      : runner_(weights, {}, 512), memory_(kBlocks * LayoutOf(runner_, format).BlockStride()) {
    SetPages({memory_.as<std::byte>(), kBlocks, LayoutOf(runner_, format)});
  }
  ModelRunner& runner() override { return runner_; }

 private:
  TransformerRunner runner_;
  Buffer memory_;
};

class OneGpuRig final : public Rig {
 public:
  explicit OneGpuRig(const Weights& weights, const RigFormat& format = KvDtype::kBf16,
                     const CudaRunner::Options& options = {})
      : device_(*cuda::CudaDevice::Open(0)),
        runner_(*CudaRunner::Create(weights, *device_, options)),
        pages_(*cuda::CudaPages::Create(*device_, LayoutOf(*runner_, format), kBlocks)) {
    SetPages(pages_->view());
  }
  ModelRunner& runner() override { return *runner_; }

 private:
  std::unique_ptr<cuda::CudaDevice> device_;
  std::unique_ptr<CudaRunner> runner_;
  std::unique_ptr<cuda::CudaPages> pages_;
};

// Second copies of a span lie in rows of their own, one for each block.
class ManyGpusRig final : public Rig {
 public:
  ManyGpusRig(const Weights& weights, int ranks, const RigFormat& format = KvDtype::kBf16,
              const CudaRunner::Options& options = {}) {
    std::vector<cuda::CudaDevice*> devices;
    for (int rank = 0; rank < ranks; ++rank) {
      devices_.push_back(*cuda::CudaDevice::Open(rank));
      devices.push_back(devices_.back().get());
    }
    links_ = *NcclRanks::Create(*NcclLibrary::Load(FAKE_NCCL), ranks, {});
    runner_ = *TensorParallelRunner::Create(weights, devices, *links_, options);
    const KvLayout layout = cuda::LayoutOfRank(LayoutOf(*runner_, format), ranks);
    const int64_t rows = layout.span > 0 ? kBlocks : 0;
    std::vector<std::unique_ptr<cuda::CudaPages>> parts;
    for (const auto& device : devices_) {
      parts.push_back(
          *cuda::CudaPages::Create(*device, layout, {.blocks = kBlocks, .rows = rows}, {}));
    }
    pages_.emplace(std::move(parts));
    if (rows > 0) SetRows();
    EXPECT_TRUE(runner_->SetPages(*pages_).ok());
    SetPages(pages_->view());
  }
  ModelRunner& runner() override { return *runner_; }
  // The bytes of one GPU's pages of a sequence, in all layers.
  std::vector<std::byte> PagesOf(int rank, int sequence) const {
    const PagedKv& own = pages_->view_of(rank);
    const size_t bytes = own.layout.PayloadBytes();
    std::vector<std::byte> pages(Table(sequence).size() * bytes);
    ReadPages(own, Table(sequence), 0, bytes, pages.data());
    return pages;
  }
  const CudaGraphs& graphs() const { return runner_->graphs(); }

 private:
  // The last block has the first row.
  void SetRows() {
    row_.resize(kBlocks);
    std::iota(row_.rbegin(), row_.rend(), 0u);
    rows_ = RowsBehind(pages_->view(), row_.data(), kBlocks);
    pages_->SetRows(&rows_);
  }

  std::vector<uint32_t> row_;
  WindowRowsView rows_;
  std::vector<std::unique_ptr<cuda::CudaDevice>> devices_;
  std::unique_ptr<NcclRanks> links_;
  std::optional<cuda::ShardedPages> pages_;
  std::unique_ptr<TensorParallelRunner> runner_;
};

}  // namespace penstock
