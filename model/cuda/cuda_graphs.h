#pragma once

#include <cstdint>
#include <functional>
#include <list>

#include "base/status.h"
#include "kernels/paged_kv.h"
#include "model/cuda/cuda_batch.h"

namespace penstock {

// All that a graph of a step is made for; what else differs between steps lies in device memory.
struct CudaGraphKey {
  CudaBatchShape shape;
  const std::byte* arena = nullptr;
  KvDtype dtype = KvDtype::kBf16;
  int32_t block_tokens = 0;

  bool operator==(const CudaGraphKey&) const = default;
};

// Graphs of the shapes that came last: launching one takes the host as long as one kernel of the
// hundreds in it. One thread.
class CudaGraphs {
 public:
  // At most `most` shapes, with a graph each, for work on `stream`.
  CudaGraphs(size_t max, void* stream) : max_(max), stream_(stream) {}
  ~CudaGraphs() { Clear(); }
  CudaGraphs(const CudaGraphs&) = delete;
  CudaGraphs& operator=(const CudaGraphs&) = delete;

  // Enqueues what `enqueue` does, the same for every step of `key`: by calling it when a key comes
  // for the first time, as a graph made of it from then on. Where CUDA makes no graph, that is
  // logged once and `enqueue` is called from then on.
  void Run(const CudaGraphKey& key, const std::function<void()>& enqueue);
  // Memory that graphs name is no longer there. None of them is under way.
  void Clear();

  size_t size() const { return shapes_.size(); }
  int64_t made() const { return made_; }          // graphs, since the start
  int64_t launches() const { return launches_; }  // of graphs

 private:
  struct Shape {
    CudaGraphKey key;
    void* graph = nullptr;  // null: came once
  };

  void* Make(const std::function<void()>& enqueue);

  const size_t max_;
  void* const stream_;
  bool refused_ = false;
  int64_t made_ = 0, launches_ = 0;
  std::list<Shape> shapes_;  // the last one used first
};

}  // namespace penstock
