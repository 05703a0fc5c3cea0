#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/cuda/gemm.h"

namespace penstock::cuda {

// cuBLASLt's product, loaded at run time: a peer to compare times with.
class CublasLt {
 public:
  // Loads `path`, or where it is empty the first of the usual names. nullptr: there is none, and
  // `reason` says why.
  static std::unique_ptr<CublasLt> Load(const std::string& path, std::string& reason);
  virtual ~CublasLt() = default;

  // Prepares output [rows][outputs] (f32, or bf16) = input [rows][inputs] * weight^T with the
  // library's best guess. False: it knows none.
  virtual bool Prepare(const Weight& weight, int rows, bool bf16_output) = 0;
  // Enqueues what was prepared; `workspace` has kWorkspaceBytes. False: the library refuses.
  virtual bool Multiply(const Bf16* weight, const Bf16* input, void* output, std::byte* workspace,
                        void* stream) = 0;
  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;
};

}  // namespace penstock::cuda
