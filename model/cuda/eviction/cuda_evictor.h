#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/eviction/eviction.h"
#include "kernels/eviction/kv_evictor.h"

namespace penstock {

// Evicts in pages on a GPU: scores come to the host, and the slots that it chooses go back. Works
// on a stream of its own, beside the runner's, and returns when the GPU has done what a call asks.
//
// This room, model/cuda/eviction, has what evictions add to the runner of a GPU. It may use base/,
// kernels/, kernels/eviction, and kernels/cuda with its eviction room.
class CudaEvictor final : public KvEvictor {
 public:
  struct Sizes {
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    int32_t tokens_max = 0;  // of a sequence
  };
  // Allocates what the longest sequence needs. Returns RESOURCE_EXHAUSTED that names the
  // allocation. `device` outlives the result.
  static absl::StatusOr<std::unique_ptr<CudaEvictor>> Create(const cuda::CudaDevice& device,
                                                             const Sizes& sizes);
  ~CudaEvictor() override;

  void Score(const KeyScoresArgs& args) override;
  void AddAttention(const KeyScoresArgs& args) override;
  void Move(const EvictLayerArgs& args, std::span<const std::vector<uint32_t>> kept) override;
  const Exec& exec() const override { return exec_; }

  // The same in two parts, so that several GPUs work at once: one function enqueues the work, and
  // the next one waits for it. Not for scorings that read no page.
  void BeginScore(const KeyScoresArgs& args);
  void BeginAttention(const KeyScoresArgs& args);
  void TakeScores(const KeyScoresArgs& args);  // of either; each KV head's own ones
  void BeginMove(const EvictLayerArgs& args, std::span<const std::vector<uint32_t>> kept);
  void FinishMove();

 private:
  CudaEvictor(const cuda::CudaDevice& device, const Sizes& sizes)
      : device_(device), sizes_(sizes) {}
  absl::Status Allocate();
  cuda::KeyScoreParams ParamsOf(const KeyScoresArgs& args);
  void AddQueries(const KeyScoresArgs& args, cuda::KeyScoreParams params);
  void PackQueries(const KeyScoresArgs& args, int64_t first, int64_t count);
  void ToDevice(const cuda::DeviceBuffer& to, const void* from, size_t bytes);
  void Finish(const char* what);

  const cuda::CudaDevice& device_;
  const Sizes sizes_;
  const Exec exec_;  // the host's part is done by the calling thread
  void* stream_ = nullptr;
  cuda::DeviceBuffer from_, to_;  // block tables
  cuda::DeviceBuffer scores_;     // f32 [kv_heads][tokens]
  cuda::DeviceBuffer slots_;      // u32 [kv_heads][kept]
  cuda::DeviceBuffer queries_;    // bf16 [kScoredQueriesMax][heads * head_dim]
  cuda::DeviceBuffer scratch_;    // of KeyScoreScratchFloats
  std::vector<Bf16> packed_;      // queries
};

}  // namespace penstock
