#include <cublasLt.h>

#include <cstdint>
#include <vector>

#include "kernels/bf16.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/gpu/suite.h"

namespace penstock::cuda {

double GemmCeilingUs(int size) {
  cublasLtHandle_t handle = nullptr;
  if (cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 0;
  const size_t elements = size_t{1} * size * size;
  std::vector<Bf16> values(elements);
  uint32_t state = 1;
  for (Bf16& value : values) {
    state = state * 1664525u + 1013904223u;
    value = ToBf16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f);
  }
  const DeviceArray<Bf16> a(values), b(values), c(elements);
  const DeviceArray<std::byte> workspace(32 << 20);
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t layout;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                 sizeof(transpose));
  cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, size, size, size);
  cublasLtMatmulPreferenceCreate(&preference);
  const size_t workspace_bytes = workspace.size();
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &workspace_bytes, sizeof(workspace_bytes));
  cublasLtMatmulHeuristicResult_t found;
  int count = 0;
  cublasLtMatmulAlgoGetHeuristic(handle, operation, layout, layout, layout, layout, preference, 1,
                                 &found, &count);
  double us = 0;
  if (count > 0) {
    const float one = 1, zero = 0;
    us = MedianUs([&] {
      cublasLtMatmul(handle, operation, &one, a.data(), layout, b.data(), layout, &zero, c.data(),
                     layout, c.data(), layout, &found.algo, workspace.data(), workspace_bytes,
                     nullptr);
    });
  }
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(operation);
  cublasLtDestroy(handle);
  return us;
}

}  // namespace penstock::cuda
