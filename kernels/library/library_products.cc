#include "kernels/library/library_products.h"

#include "kernels/cuda/quantised_gemm.h"
#include "kernels/library/gemm_plan.h"
#include "kernels/library/tile_check.h"

namespace penstock::cuda {
namespace {

class Library final : public Products {
 public:
  explicit Library(int32_t processors) : processors_(processors) {}

  // A new version of the libraries may round differently; then this name changes.
  std::string_view name() const override { return "library 1"; }
  InputOrder order() const override { return InputOrder::kNatural; }
  absl::Status Check(const Weight& weight) const override {
    if (library::SupportsGemm(weight)) return absl::OkStatus();
    return FailedPrecondition(
        "a matrix has {} outputs and {} inputs; the library kernels need multiples of 4 and 8; use "
        "--gpu_kernels=own",
        weight.outputs, weight.inputs);
  }
  int32_t Slices(const Weight&) const override { return 1; }
  Product Multiply(const Weight& weight, const Bf16* input, int rows, float* output,
                   void* stream) const override {
    if (weight.quantised()) return QuantisedGemm(weight, input, rows, output, stream);
    const library::GemmChoice choice = library::ChooseGemm(weight, rows, processors_);
    library::LaunchGemm(choice.tile,
                        {.weight = weight,
                         .input = input,
                         .rows = rows,
                         .output = output,
                         .processors = processors_,
                         .swizzle = choice.swizzle},
                        stream);
    return {.data = output, .slices = 1, .width = weight.outputs};
  }

 private:
  const int32_t processors_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Products>> MakeLibraryProducts(const DeviceInfo& info) {
  if (info.compute_major == 9 && info.compute_minor == 0) {
    return std::make_unique<Library>(info.processors);
  }
  return FailedPrecondition(
      "gpu_kernels is library, and {} has compute capability {}.{}; the library kernels need 9.0 "
      "(H100, H200); use --gpu_kernels=own",
      info.name, info.compute_major, info.compute_minor);
}

absl::Status CheckLibraryProducts(const CudaDevice& device) {
  device.Select();
  const auto run = [&](library::GemmTile tile, const library::GemmCall& call) {
    library::LaunchGemm(tile, call, device.stream());
  };
  return library::CheckTiles(run, device.info().processors, device.stream());
}

}  // namespace penstock::cuda
