#include "kernels/cuda/device/latents/head_products.cuh"
#include "kernels/cuda/device/latents/latent_rows.cuh"
#include "kernels/cuda/latents/latents.h"

namespace penstock::cuda {
namespace {

int Pieces(int64_t size, int64_t each) { return static_cast<int>((size + each - 1) / each); }

template <int kColumns>
void LaunchSkinny(const HeadProductParams& params, void* stream) {
  const LaunchShape shape{.x = Pieces(params.outputs, 16 * kSkinnyWarps),
                          .z = params.heads,
                          .threads = kSkinnyWarps * 32,
                          .shared_bytes = SkinnyShape<kColumns>::kSharedBytes};
  Launch(&HeadSkinnyKernel<kColumns>, shape, params, stream);
}

}  // namespace

void LatentNorm(const LatentNormParams& params, int rows, void* stream) {
  const LaunchShape shape{
      .x = rows, .threads = kRowThreads, .shared_bytes = kRowThreads / 32 * sizeof(float)};
  Launch(&LatentNormKernel, shape, params, stream);
}

void LatentAppend(const LatentAppendParams& params, void* stream) {
  Launch(&LatentAppendKernel, {.x = Pieces(params.rows, kRopeWarps), .threads = kRopeWarps * 32},
         params, stream);
}

void LatentQueries(const LatentQueryParams& params, void* stream) {
  const int64_t warps = int64_t{params.rows} * params.heads;
  Launch(&LatentQueriesKernel, {.x = Pieces(warps, kRopeWarps), .threads = kRopeWarps * 32}, params,
         stream);
}

void HeadProducts(const HeadProductParams& params, void* stream) {
  if (params.rows <= 8) return LaunchSkinny<1>(params, stream);
  if (params.rows <= 16) return LaunchSkinny<2>(params, stream);
  if (params.rows <= 32) return LaunchSkinny<4>(params, stream);
  if (params.rows <= kSkinnyRowsMax) return LaunchSkinny<8>(params, stream);
  const LaunchShape shape{.x = Pieces(params.rows, kWideTile),
                          .y = Pieces(params.outputs, kWideTile),
                          .z = params.heads,
                          .threads = kWideThreads,
                          .shared_bytes = kWideSharedBytes};
  Launch(&HeadWideKernel, shape, params, stream);
}

}  // namespace penstock::cuda
