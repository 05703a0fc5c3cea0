#pragma once

#include "kernels/buffer.h"
#include "kernels/device.h"
#include "kernels/packed_matrix.h"
#include "kernels/view.h"

namespace penstock {

// What happens to a finished product before it is stored.
enum class GemmOutput {
  kStore,     // output = product
  kAdd,       // output += product
  kSiluGate,  // weight rows alternate 16 of a gate and 16 of its up projection;
              // output[i] = silu(gate[i]) * up[i], half as wide as the weight
};

// Memory for packed activations and for accumulators, for products of up to a given size.
class GemmScratch {
 public:
  GemmScratch() = default;
  GemmScratch(int64_t max_rows, int64_t max_inputs, int threads);

  float* packed() const { return packed_.as<float>(); }
  float* tiles(int thread) const { return tiles_.as<float>() + thread * tile_floats_; }
  int64_t max_rows() const { return max_rows_; }
  int64_t max_inputs() const { return max_inputs_; }
  size_t bytes() const { return packed_.bytes() + tiles_.bytes(); }

 private:
  int64_t max_rows_ = 0;
  int64_t max_inputs_ = 0;
  int64_t tile_floats_ = 0;
  Buffer packed_;
  Buffer tiles_;
};

struct GemmArgs {
  View<const float, 2> input;  // [rows, inputs]
  const PackedMatrix* weight = nullptr;
  View<const float, 1> bias = {};  // [weight outputs], or null
  View<float, 2> output;           // [rows, outputs], or [rows, outputs / 2] for kSiluGate
  GemmOutput mode = GemmOutput::kStore;
  const GemmScratch* scratch = nullptr;  // at least of this size
};

namespace cpu {
void Gemm(const Exec& exec, const GemmArgs& args);
}

// output = input * weight^T + bias, for every row on its own: each element is one chain of
// multiply-adds over ascending inputs in f32, whatever the number of rows or threads.
inline void Gemm(const Exec& exec, const GemmArgs& args) { cpu::Gemm(exec, args); }

}  // namespace penstock
