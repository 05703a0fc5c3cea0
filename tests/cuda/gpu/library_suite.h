#pragma once

#include <string>

#include "tests/cuda/gpu/report.h"

namespace penstock::cuda {

// The library's products: the same bits for every tile and any number of rows, and close to double
// precision.
void CheckLibraryGemm(int processors, Report& report);
// Products of few rows with quantised weights: the bits of the library's with the same weights in
// bf16.
void CheckLibraryQuantised(int processors, Report& report);
// Times of ours, of every tile and of cuBLASLt (`cublas_lt`: its path, or empty).
void MeasureLibraryGemm(int processors, const std::string& cublas_lt, Report& report);

// The library's prefill attention: close to double precision, and the same bits for any division
// of a prompt into chunks.
void CheckLibraryPrefill(int processors, Report& report);
// Times of ours and of the library's.
void MeasureLibraryPrefill(int processors, Report& report);

}  // namespace penstock::cuda
