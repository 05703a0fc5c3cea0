#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "lab/report/report.h"

namespace penstock {

// Measures the shape of BenchModel with FP8, 8-bit and 4-bit weights in groups of 128, and with
// those of GGUF's Q4_K (with 4 bits the output matrix is 8-bit), against limits of the same run:
// reading the same memory, and dot products of 16-bit integers, or of bf16 with FP8. Rows:
// decode_b1_fp8, prefill_512_fp8, decode_b1_int8, prefill_512_int8, decode_b1_int4,
// prefill_512_int4, decode_b8_int4_over_b1, int16_dot_product_peak, decode_b1_q4_k,
// prefill_512_q4_k.
std::vector<BenchRow> MeasureQuantisedWeights(
    const Exec& exec, int32_t rounds, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
