#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "lab/report/report.h"

namespace penstock {

// Measures the shape of BenchModel with FP8, 8-bit and 4-bit weights in groups of 128, and with
// those of GGUF's Q4_K, Q5_K and Q6_K (the output matrix is 8-bit but with FP8), against limits of
// the same run: reading the same memory, and dot products of 16-bit integers, or of bf16 with FP8.
// Rows, of FORM in fp8, int8, int4, q4_k, q5_k and q6_k: decode_b1_FORM, prefill_512_FORM,
// decode_b8_int4_over_b1, int16_dot_product_peak.
std::vector<BenchRow> MeasureQuantisedWeights(
    const Exec& exec, int32_t rounds, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
