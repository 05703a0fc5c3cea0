#include "tests/cuda/gpu/cublas_lt.h"

#if __has_include(<cublasLt.h>)

#include <cublasLt.h>
#include <dlfcn.h>

namespace penstock::cuda {
namespace {

struct Calls {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmulDescCreate) make_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatrixLayoutCreate) make_layout;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
  decltype(&cublasLtMatmul) multiply;

  bool LoadFrom(void* library) {
    const auto get = [&](auto& call, const char* name) {
      call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(dlsym(library, name));
      return call != nullptr;
    };
    return get(create, "cublasLtCreate") && get(make_operation, "cublasLtMatmulDescCreate") &&
           get(set_operation, "cublasLtMatmulDescSetAttribute") &&
           get(make_layout, "cublasLtMatrixLayoutCreate") &&
           get(make_preference, "cublasLtMatmulPreferenceCreate") &&
           get(set_preference, "cublasLtMatmulPreferenceSetAttribute") &&
           get(choose, "cublasLtMatmulAlgoGetHeuristic") && get(multiply, "cublasLtMatmul");
  }
};

// What is made here lives until the program ends.
class Loaded final : public CublasLt {
 public:
  explicit Loaded(const Calls& calls) : calls_(calls) {}

  bool Start() { return calls_.create(&handle_) == CUBLAS_STATUS_SUCCESS; }

  bool Prepare(const Weight& weight, int rows, bool bf16_output) override {
    const auto m = static_cast<uint64_t>(weight.outputs), k = static_cast<uint64_t>(weight.inputs);
    const auto n = static_cast<uint64_t>(rows);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    const size_t workspace = kWorkspaceBytes;
    cublasLtMatmulPreference_t preference = nullptr;
    int count = 0;
    return Good(calls_.make_operation(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
           Good(calls_.set_operation(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                     sizeof(transpose))) &&
           Good(calls_.make_layout(&weight_, CUDA_R_16BF, k, m, weight.inputs)) &&
           Good(calls_.make_layout(&input_, CUDA_R_16BF, k, n, weight.inputs)) &&
           Good(calls_.make_layout(&output_, bf16_output ? CUDA_R_16BF : CUDA_R_32F, m, n,
                                   weight.outputs)) &&
           Good(calls_.make_preference(&preference)) &&
           Good(calls_.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                      &workspace, sizeof(workspace))) &&
           Good(calls_.choose(handle_, operation_, weight_, input_, output_, output_, preference, 1,
                              &found_, &count)) &&
           count > 0;
  }

  bool Multiply(const Bf16* weight, const Bf16* input, void* output, std::byte* workspace,
                void* stream) override {
    const float one = 1, zero = 0;
    return Good(calls_.multiply(handle_, operation_, &one, weight, weight_, input, input_, &zero,
                                output, output_, output, output_, &found_.algo, workspace,
                                kWorkspaceBytes, static_cast<cudaStream_t>(stream)));
  }

 private:
  static bool Good(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

  Calls calls_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr, input_ = nullptr, output_ = nullptr;
  cublasLtMatmulHeuristicResult_t found_{};
};

}  // namespace

std::unique_ptr<CublasLt> CublasLt::Load(const std::string& path, std::string& reason) {
  const char* const kUsual[] = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13",
                                "libcublasLt.so.12", "libcublasLt.so"};
  void* library = nullptr;
  if (!path.empty()) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  } else {
    for (const char* name : kUsual) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
  }
  if (library == nullptr) {
    const char* error = dlerror();
    reason = error == nullptr ? "no reason given" : error;
    return nullptr;
  }
  Calls calls;
  if (!calls.LoadFrom(library)) {
    reason = "it lacks a function";
    return nullptr;
  }
  auto loaded = std::make_unique<Loaded>(calls);
  if (loaded->Start()) return loaded;
  reason = "cublasLtCreate fails";
  return nullptr;
}

}  // namespace penstock::cuda

#else

namespace penstock::cuda {

std::unique_ptr<CublasLt> CublasLt::Load(const std::string&, std::string& reason) {
  reason = "built without cublasLt.h";
  return nullptr;
}

}  // namespace penstock::cuda

#endif
