#pragma once

#include <array>
#include <utility>

#include "kernels/cuda/row_params.h"
#include "model/cuda/cuda_batch.h"
#include "model/cuda/cuda_inputs.h"

namespace penstock {

// The angles of a rotation in a step's inputs: cosines and sines, [rows][dims / 2].
struct StepAngles {
  size_t cosines = 0, sines = 0;
  int32_t dims = 0;  // 0: no rotation
};

// A step in progress: its batch and the addresses of its arrays on the device. Lives on the stack
// of CudaRunner::Step.
struct CudaStep {
  explicit CudaStep(CudaBatch of) : batch(std::move(of)) {}

  template <class T>
  const T* At(size_t offset) const {
    return reinterpret_cast<const T*>(inputs + offset);
  }

  // True if a stored layer's pages are rows (PagedKv::rows), which slots and tables of their own
  // name.
  bool InRows(int32_t layer) const { return kv.rows != nullptr && kv.layout.group.Has(layer); }

  // The layer of the pages that has the model's layer; with a span, the first of its two copies.
  int32_t StoredLayer(int32_t layer) const { return kv.layout.Copies() * layer; }
  const int64_t* SlotsOf(int32_t stored) const {
    return At<int64_t>(InRows(stored) ? row_slots : slots);
  }

  CudaBatch batch;
  PagedKv kv;
  const std::byte* inputs = nullptr;  // StepInputs
  // Offsets in `inputs`.
  size_t tokens = 0, positions = 0, slots = 0, row_slots = 0, last_rows = 0, output_rows = 0;
  size_t draws = 0;
  std::array<StepAngles, 3> angles;  // by LayerRope
  size_t unbounded = 0;
  AttentionInputs all_at, last_at;
  SelectedInputs all_selected_at, last_selected_at;
  // The rows that the rest of the layer computes: all rows, and in the last layer those with logits
  // or draws.
  const CudaAttention* attention = nullptr;
  const AttentionInputs* attention_at = nullptr;
  const CudaSelected* selected = nullptr;
  const SelectedInputs* selected_at = nullptr;
  float* residual = nullptr;
  cuda::Product to_add;  // what the residual still lacks of the layer before; no slices: nothing
  const float* to_add_norm = nullptr;  // of to_add, as NormParams::product_norm
  Bf16* queries = nullptr;
  Bf16* centre_queries = nullptr;  // null: the pages have whole keys
};

}  // namespace penstock
