#include "model/cuda/cuda_graphs.h"

#include <algorithm>

#include "base/log/log.h"
#include "kernels/cuda/cuda_device.h"

namespace penstock {

void CudaGraphs::Run(const CudaGraphKey& key, const std::function<void()>& enqueue) {
  const auto found = std::ranges::find(shapes_, key, &Shape::key);
  if (found == shapes_.end()) {
    shapes_.push_front({.key = key});
    if (shapes_.size() > max_) {
      cuda::DestroyGraph(shapes_.back().graph);
      shapes_.pop_back();
    }
    return enqueue();
  }
  shapes_.splice(shapes_.begin(), shapes_, found);
  if (found->graph == nullptr && !refused_) found->graph = Make(enqueue);
  if (found->graph == nullptr) return enqueue();
  cuda::LaunchGraph(found->graph, stream_);
  ++launches_;
}

void* CudaGraphs::Make(const std::function<void()>& enqueue) {
  cuda::BeginCapture(stream_);
  enqueue();
  void* graph = cuda::EndCapture(stream_);
  absl::Status status = cuda::TakeStatus("a graph of a decode step");
  if (status.ok() && graph == nullptr) status = Internal("CUDA captured no graph");
  if (exchange_ != nullptr) status = exchange_->Agree({.prepared = status}).prepared;
  if (status.ok()) {
    ++made_;
    return graph;
  }
  LogWarning("gpu_graph_refused", "decode steps continue without CUDA graphs and are slower: {}",
             Message(status));
  refused_ = true;
  cuda::DestroyGraph(graph);
  return nullptr;
}

void CudaGraphs::Clear() {
  for (const Shape& shape : shapes_) cuda::DestroyGraph(shape.graph);
  shapes_.clear();
}

}  // namespace penstock
