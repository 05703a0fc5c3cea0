#pragma once

#include <cstdint>
#include <functional>
#include <list>

#include "base/status.h"
#include "kernels/paged_kv.h"
#include "model/cuda/cuda_batch.h"
#include "model/cuda/product_exchange.h"

namespace penstock {

// Everything that a captured graph depends on. All other inputs of a step are read from device
// memory.
struct CudaGraphKey {
  CudaBatchShape shape;
  const std::byte* arena = nullptr;
  KvPageFormat format = {};
  int32_t block_tokens = 0;

  bool operator==(const CudaGraphKey&) const = default;
};

// Owns the CUDA graphs of the most recently used shapes. Launching a graph costs the host as much
// time as one of its hundreds of kernels. Of several GPUs that exchange products, all make the same
// calls in the same order, so all capture the same steps: NCCL wants all ranks to capture a call,
// or none. One thread.
class CudaGraphs {
 public:
  // Keeps at most `max` shapes, with one graph each, for work on `stream`. `exchange` outlives the
  // graphs; null: the GPU computes alone.
  CudaGraphs(size_t max, void* stream, ProductExchange* exchange = nullptr)
      : max_(max), stream_(stream), exchange_(exchange) {}
  ~CudaGraphs() { Clear(); }
  CudaGraphs(const CudaGraphs&) = delete;
  CudaGraphs& operator=(const CudaGraphs&) = delete;

  // Enqueues the work that `enqueue` enqueues, which must be equal for every step of `key`. The
  // first step of a key calls it; later steps launch a graph that is captured from it. If CUDA
  // refuses to capture on any of the GPUs, this is logged once, and `enqueue` is called from then
  // on, on all of them.
  void Run(const CudaGraphKey& key, const std::function<void()>& enqueue);
  // Destroys all graphs, because memory that they name is being replaced. No graph may be running.
  void Clear();

  size_t size() const { return shapes_.size(); }
  int64_t made() const { return made_; }          // graphs captured since the start
  int64_t launches() const { return launches_; }  // graph launches

 private:
  struct Shape {
    CudaGraphKey key;
    void* graph = nullptr;  // null until its second use
  };

  void* Make(const std::function<void()>& enqueue);

  const size_t max_;
  void* const stream_;
  ProductExchange* const exchange_;
  bool refused_ = false;
  int64_t made_ = 0, launches_ = 0;
  std::list<Shape> shapes_;  // most recently used first
};

}  // namespace penstock
