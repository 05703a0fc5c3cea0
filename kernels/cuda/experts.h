#pragma once

#include <cstdint>

#include "kernels/cuda/gemm.h"

// A layer's mixture of experts. Each row chooses `per_token` experts; row r's choice j is pair
// r * per_token + j. The pairs are sorted by expert, so that the rows of an expert are neighbours,
// which a grouped product multiplies by that expert's matrix. All pointers are to device memory,
// and the host never waits for a choice. The bits of a row depend on that row only.

namespace penstock::cuda {

constexpr int32_t kExpertsMax = 512;  // of a layer
constexpr int32_t kExpertsPerTokenMax = 32;

// scores = input * vectors^T, in f32.
struct ScoreParams {
  const Bf16* input = nullptr;     // [rows][hidden]
  const float* vectors = nullptr;  // [count][hidden]
  float* scores = nullptr;         // [rows][count]
  int32_t rows = 0;
  int32_t count = 0;
  int32_t hidden = 0;  // a multiple of 8
};

// The choice of experts, as RouteArgs (kernels/experts.h) says.
struct RouteParams {
  const float* scores = nullptr;       // [rows][count]: of experts, then of the shared one's gate
  const float* choice_bias = nullptr;  // [experts], or null
  int32_t* chosen = nullptr;           // out, [rows][per_token]
  float* weights = nullptr;            // out, [rows][per_token]
  // Out, [rows]: the sigmoid of the gate's score, or 1 without a gate. Null: no shared expert.
  float* shared_weights = nullptr;
  int32_t count = 0;
  int32_t experts = 0;
  int32_t per_token = 0;
  bool normalise = false;
  bool sigmoid = false;
  float scale = 1;
};

// Sorts pairs by expert. Pairs of one expert ascend.
struct GroupParams {
  const int32_t* chosen = nullptr;  // [pairs]
  int32_t pairs = 0;
  int32_t per_token = 0;
  int32_t experts = 0;
  // Out, [experts + 1]: the place of each expert's first pair, and `pairs` at the end.
  int32_t* first = nullptr;
  int32_t* rows = nullptr;    // out, [pairs]: the row at a place
  int32_t* places = nullptr;  // out, [pairs]: the place of a pair
};

// The bf16 matrices of all experts: [experts][outputs][inputs].
struct GroupedWeight {
  const Bf16* data = nullptr;
  int32_t outputs = 0;
  int32_t inputs = 0;
  int32_t experts = 0;

  // An expert's matrix, also on the device.
  constexpr Weight Of(int32_t expert) const {
    return {.data = data + static_cast<int64_t>(expert) * outputs * inputs,
            .outputs = outputs,
            .inputs = inputs};
  }
};

// The rows of a grouped product, by place.
struct GroupedRows {
  const Bf16* input = nullptr;     // [pairs][inputs]
  const int32_t* first = nullptr;  // as in GroupParams
  int32_t rows = 0;                // the most pairs that an expert can have
  int32_t pairs = 0;
};

// Arguments of the kernels of grouped products.
struct GroupedParams {
  GroupedWeight weight;
  const Bf16* input = nullptr;
  const int32_t* first = nullptr;
  float* output = nullptr;   // [slices, or 1][pairs][outputs]
  int64_t slice_stride = 0;  // elements from slice to slice of the output
  int32_t slice_inputs = 0;
  int32_t chunks = 0;  // of the few-rows kernel: parts of an expert's rows
};

// output = the sum over a row's pairs, in order, of weight * product. With `adds` the sum begins
// with what `output` has.
struct MixParams {
  Product product;                  // by place
  const int32_t* places = nullptr;  // [rows * per_token]; null: the pair is the place
  const float* weights = nullptr;   // [rows][per_token]
  int32_t per_token = 0;
  float* output = nullptr;  // [rows][width]; width is a multiple of 4
  bool adds = false;
};

void Score(const ScoreParams& params, void* stream);
void Route(const RouteParams& params, int rows, void* stream);
void Group(const GroupParams& params, void* stream);
void Mix(const MixParams& params, int rows, void* stream);

// Multiplies the rows of each expert by its matrix. A row's sum has the bits that Gemm gives for
// that matrix. `output` has room for GroupedFloats.
Product GroupedGemm(const GroupedWeight& weight, const GroupedRows& rows, float* output,
                    void* stream);
int64_t GroupedFloats(const GroupedWeight& weight, int64_t pairs);

// The two kernels. The few-rows kernel reads a matrix once for every `columns` * 8 rows of its
// expert, with `columns` 1, 2, 4 or 8. The other one is for hundreds of rows; it adds slices up.
Product GroupedSkinnyGemm(const GroupedWeight& weight, const GroupedRows& rows, int columns,
                          float* output, void* stream);
Product GroupedWideGemm(const GroupedWeight& weight, const GroupedRows& rows, float* output,
                        void* stream);

}  // namespace penstock::cuda
