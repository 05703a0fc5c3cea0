#pragma once

#include <vector>

#include "lab/micro/kernels_limits.h"
#include "lab/report/report.h"

namespace penstock {

// Attention of a decode step over pages of every resident format: 8 sequences of 2,048 tokens with
// TinyLlama-1.1B's heads, over 12 layers. Rows `attention_FORMAT`: GB/s of pages read, codes and
// scales; limit: read bandwidth, taken in turns with it. Rows `attention_elements_FORMAT`: elements
// of keys and values in a second; limit: those of bf16. Takes 200 MiB.
std::vector<BenchRow> MeasurePageFormats(const Exec& exec, const MachineLimits& limits);

}  // namespace penstock
