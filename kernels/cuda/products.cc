#include "kernels/cuda/products.h"

#include "kernels/cuda/quantised_gemm.h"

namespace penstock::cuda {
namespace {

class Own final : public Products {
 public:
  std::string_view name() const override { return "own"; }
  InputOrder order() const override { return InputOrder::kOwn; }
  absl::Status Check(const Weight&) const override { return absl::OkStatus(); }
  int32_t Slices(const Weight& weight) const override { return SkinnySlices(weight); }
  Product Multiply(const Weight& weight, const Bf16* input, int rows, float* output,
                   void* stream) const override {
    if (weight.quantised()) return QuantisedGemm(weight, input, rows, output, stream);
    return Gemm(weight, input, rows, output, stream);
  }
};

}  // namespace

const Products& OwnProducts() {
  static const Own own;
  return own;
}

}  // namespace penstock::cuda
