#pragma once

#include <utility>

#include "kernels/cuda/row_params.h"
#include "model/cuda/cuda_batch.h"
#include "model/cuda/cuda_inputs.h"

namespace penstock {

// A step in progress: its batch and the addresses of its arrays on the device. Lives on the stack
// of CudaRunner::Step or StepMtp.
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
    return At<int64_t>(InRows(stored) ? rows->row_slots : rows->slots);
  }

  CudaBatch batch;
  std::vector<int32_t> kept;  // rows that a step with blended parts had before, of which batch is
  PagedKv kv;
  const std::byte* inputs = nullptr;  // StepInputs
  // Offsets in `inputs`.
  size_t kept_rows = 0, last_rows = 0, output_rows = 0, draws = 0, unbounded = 0;
  StepRows all_rows, mtp_rows;  // of all rows, and of those of batch.mtp
  // The arrays of batch.mtp: its states, those that are given, and the order of the layer's input.
  size_t mtp_states = 0, mtp_before = 0, mtp_order = 0;
  AttentionInputs all_at, last_at;
  SelectedInputs all_selected_at, last_selected_at;
  CudaAttention mtp_attention;  // of batch.mtp's rows, which have keys and values alone
  // The rows that the layer computes: all rows, or those for multi-token prediction.
  const StepRows* rows = nullptr;
  // The rows that the rest of the layer computes: these, and in the last layer those of
  // CudaBatch::last_rows.
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
