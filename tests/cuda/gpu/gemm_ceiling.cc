#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>
#include <vector>

#include "kernels/bf16.h"
#include "tests/cuda/cases/device_array.h"
#include "tests/cuda/gpu/suite.h"

namespace penstock::cuda {
namespace {

// cublasLt's functions by their names, from the library that is loaded at run time: it is larger
// than all that is checked.
class CublasLt {
 public:
  CublasLt() {
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
      if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
  }
  bool loaded() const { return library_ != nullptr; }

  template <class Function>
  Function* Find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }

 private:
  void* library_ = nullptr;
};

#define PENSTOCK_LT(name) const auto name##_ = lt.Find<decltype(name)>(#name)

}  // namespace

double GemmCeilingUs(int size) {
  const CublasLt lt;
  if (!lt.loaded()) return 0;
  PENSTOCK_LT(cublasLtCreate);
  PENSTOCK_LT(cublasLtDestroy);
  PENSTOCK_LT(cublasLtMatmul);
  PENSTOCK_LT(cublasLtMatmulAlgoGetHeuristic);
  PENSTOCK_LT(cublasLtMatmulDescCreate);
  PENSTOCK_LT(cublasLtMatmulDescDestroy);
  PENSTOCK_LT(cublasLtMatmulDescSetAttribute);
  PENSTOCK_LT(cublasLtMatrixLayoutCreate);
  PENSTOCK_LT(cublasLtMatrixLayoutDestroy);
  PENSTOCK_LT(cublasLtMatmulPreferenceCreate);
  PENSTOCK_LT(cublasLtMatmulPreferenceDestroy);
  PENSTOCK_LT(cublasLtMatmulPreferenceSetAttribute);
  cublasLtHandle_t handle = nullptr;
  if (cublasLtCreate_(&handle) != CUBLAS_STATUS_SUCCESS) return 0;
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
  cublasLtMatmulDescCreate_(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  cublasLtMatmulDescSetAttribute_(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                  sizeof(transpose));
  cublasLtMatrixLayoutCreate_(&layout, CUDA_R_16BF, size, size, size);
  cublasLtMatmulPreferenceCreate_(&preference);
  const size_t workspace_bytes = workspace.size();
  cublasLtMatmulPreferenceSetAttribute_(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                        &workspace_bytes, sizeof(workspace_bytes));
  cublasLtMatmulHeuristicResult_t found;
  int count = 0;
  cublasLtMatmulAlgoGetHeuristic_(handle, operation, layout, layout, layout, layout, preference, 1,
                                  &found, &count);
  double us = 0;
  if (count > 0) {
    const float one = 1, zero = 0;
    us = MedianUs([&] {
      cublasLtMatmul_(handle, operation, &one, a.data(), layout, b.data(), layout, &zero, c.data(),
                      layout, c.data(), layout, &found.algo, workspace.data(), workspace_bytes,
                      nullptr);
    });
  }
  cublasLtMatmulPreferenceDestroy_(preference);
  cublasLtMatrixLayoutDestroy_(layout);
  cublasLtMatmulDescDestroy_(operation);
  cublasLtDestroy_(handle);
  return us;
}

}  // namespace penstock::cuda
