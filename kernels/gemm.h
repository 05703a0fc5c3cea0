#pragma once

#include "kernels/buffer.h"
#include "kernels/device.h"
#include "kernels/view.h"
#include "kernels/weight_matrix.h"

namespace penstock {

// The operation that stores a finished product.
enum class GemmOutput {
  kStore,  // output = product
  kAdd,    // output += product
  // Rows of the weight alternate: 16 rows of the gate, then the 16 rows of its up projection.
  // output[i] = act(gate[i]) * up[i]; the output is half as wide as the weight. The activation is
  // SiLU, or GELU approximated by tanh (Hendrycks and Gimpel, arXiv 1606.08415).
  kSiluGate,
  kGeluGate,
  // gpt-oss's gate, in the same rows: with g = min(gate, limit) and u = up within [-limit, limit],
  // output[i] = g * sigmoid(1.702 * g) * (u + 1).
  kClampedGate,
  // output = act(product): GELU by the error function, and approximated by tanh.
  kGelu,
  kGeluTanh,
};
inline bool IsGate(GemmOutput mode) {
  return mode == GemmOutput::kSiluGate || mode == GemmOutput::kGeluGate ||
         mode == GemmOutput::kClampedGate;
}

// Owns the packed activations and the accumulators of Gemm, for products of up to max_rows rows and
// max_inputs inputs on `threads` threads. Used by one call of Gemm at a time.
class GemmScratch {
 public:
  GemmScratch() = default;
  GemmScratch(int64_t max_rows, int64_t max_inputs, int threads);

  float* packed() const { return packed_.as<float>(); }
  float* tiles(int thread) const { return tiles_.as<float>() + thread * tile_floats_; }
  // For quantised weights: the scale of every row, the sums of its groups, and a slice of unpacked
  // weights for each thread.
  float* row_scales() const { return row_scales_.as<float>(); }
  int32_t* group_sums() const { return group_sums_.as<int32_t>(); }
  std::byte* slice(int thread) const;
  int64_t max_rows() const { return max_rows_; }
  int64_t max_inputs() const { return max_inputs_; }
  size_t bytes() const {
    return packed_.bytes() + tiles_.bytes() + row_scales_.bytes() + group_sums_.bytes() +
           slices_.bytes();
  }

 private:
  int64_t max_rows_ = 0;
  int64_t max_inputs_ = 0;
  int64_t tile_floats_ = 0;
  Buffer packed_;
  Buffer tiles_;
  Buffer row_scales_;
  Buffer group_sums_;
  Buffer slices_;
};

struct GemmArgs {
  View<const float, 2> input;  // [rows, inputs]
  const WeightMatrix* weight = nullptr;
  View<const float, 1> bias = {};  // [outputs], or null
  View<float, 2> output;           // [rows, outputs]; [rows, outputs / 2] for gates
  GemmOutput mode = GemmOutput::kStore;
  float limit = 0;                       // of kClampedGate
  const GemmScratch* scratch = nullptr;  // not owned; at least as large as this product needs
};

namespace cpu {
void Gemm(const Exec& exec, const GemmArgs& args);
}

// output = input * weight^T + bias. With bf16 weights each output element is one chain of f32
// multiply-adds over ascending inputs. With E4M3 weights each group of inputs is such a chain, and
// groups are added in ascending order. With codes that are integers every row of the input is
// rounded to 16-bit integers with one scale, relative to its largest value; products within a group
// of inputs are exact integers, and groups are added in ascending order. An element's bits never
// depend on the number of rows or of threads; with integers the product's bits are those of every
// instruction set. A row with infinity or NaN gives NaN.
inline void Gemm(const Exec& exec, const GemmArgs& args) { cpu::Gemm(exec, args); }

}  // namespace penstock
