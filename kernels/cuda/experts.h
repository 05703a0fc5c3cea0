#pragma once

#include <cstdint>

#include "kernels/cuda/quantised_gemm.h"

// A layer's mixture of experts. Each row chooses `per_token` experts; row r's choice j is pair
// r * per_token + j. The pairs are sorted by expert, so that the rows of an expert are neighbours,
// which a grouped product multiplies by that expert's matrix. All pointers are to device memory,
// and the host never waits for a choice. The bits of a row depend on that row only.

namespace penstock::cuda {

constexpr int32_t kExpertsMax = 512;  // of a layer
constexpr int32_t kExpertsPerTokenMax = 32;
constexpr int32_t kExpertGroupsMax = 32;

// scores = input * vectors^T + bias, in f32.
struct ScoreParams {
  const Bf16* input = nullptr;     // [rows][hidden]
  const float* vectors = nullptr;  // [count][hidden]
  const float* bias = nullptr;     // [count], or null
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
  int32_t groups = 1;
  int32_t kept_groups = 1;
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
  // Out, [pairs]: the expert of a place.
  int32_t* owners = nullptr;
};

// The matrices of all experts: in bf16, [experts][outputs][inputs], or as codes, whose products add
// up inputs in InputOrder::kOwn. All experts have the same forms.
struct GroupedWeight {
  const Bf16* data = nullptr;  // null: the matrices are quantised
  int32_t outputs = 0;
  int32_t inputs = 0;
  int32_t experts = 0;
  const WeightCodes* sections = nullptr;  // of the first expert, in host memory
  int32_t section_count = 0;
  int64_t expert_bytes = 0;  // from the codes of an expert to those of the next one

  bool quantised() const { return section_count > 0; }
  // An expert's matrix in bf16, also on the device.
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

// The memory of a grouped product.
struct GroupedRoom {
  float* output = nullptr;  // room for GroupedFloats
  // Only if the matrices are quantised: room for `expanded_experts` of them in bf16, one or more.
  Bf16* expanded = nullptr;
  int32_t expanded_experts = 0;
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

// Arguments of the kernels of grouped products with codes.
struct GroupedCodeParams {
  QuantisedParams first_expert;  // with all rows
  int64_t expert_bytes = 0;
  const int32_t* first = nullptr;  // as in GroupParams
  int32_t chunks = 0;              // parts of an expert's rows
};

// gpt-oss's gate: with g = min(gate, limit) and u = up within [-limit, limit], output =
// g * sigmoid(1.702 * g) * (u + 1), for a product by place with rows as in SiluGateParams. The
// product's own bias is null.
struct ClampedGateParams {
  Product product;
  const float* bias = nullptr;      // [experts][width], or null
  const int32_t* owners = nullptr;  // as in GroupParams
  float limit = 0;
  Bf16* output = nullptr;  // [pairs][width / 2]
};

// output = the sum over a row's pairs, in order, of weight * (product + bias). With `adds` the sum
// begins with what `output` has.
struct MixParams {
  Product product;                  // by place
  const float* bias = nullptr;      // [experts][width], or null
  const int32_t* chosen = nullptr;  // [rows * per_token], if there is a bias
  const int32_t* places = nullptr;  // [rows * per_token]; null: the pair is the place
  const float* weights = nullptr;   // [rows][per_token]
  int32_t per_token = 0;
  float* output = nullptr;  // [rows][width]; width is a multiple of 4
  bool adds = false;
};

void Score(const ScoreParams& params, void* stream);
void Route(const RouteParams& params, int rows, void* stream);
void Group(const GroupParams& params, void* stream);
void ClampedGate(const ClampedGateParams& params, int pairs, void* stream);
void Mix(const MixParams& params, int rows, void* stream);

// Multiplies the rows of each expert by its matrix. A row's sum has the bits that Gemm gives for
// that matrix in bf16. Where experts have many rows, quantised matrices are expanded first, as many
// at once as there is room for.
Product GroupedGemm(const GroupedWeight& weight, const GroupedRows& rows, const GroupedRoom& room,
                    void* stream);
int64_t GroupedFloats(const GroupedWeight& weight, int64_t pairs);

// The kernels for matrices in bf16. The few-rows kernel reads a matrix once for every `columns` * 8
// rows of its expert, with `columns` 1, 2, 4 or 8. The other one is for hundreds of rows; it adds
// slices up.
Product GroupedSkinnyGemm(const GroupedWeight& weight, const GroupedRows& rows, int columns,
                          float* output, void* stream);
Product GroupedWideGemm(const GroupedWeight& weight, const GroupedRows& rows, float* output,
                        void* stream);

// The few-rows kernels for codes, and the expansion of `count` matrices from expert `first` on.
Product GroupedQuantisedGemm(const GroupedWeight& weight, const GroupedRows& rows, int columns,
                             float* output, void* stream);
void ExpandExperts(const GroupedWeight& weight, int32_t first, int32_t count, Bf16* target,
                   void* stream);

}  // namespace penstock::cuda
