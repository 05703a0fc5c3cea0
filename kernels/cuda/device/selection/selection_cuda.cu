#include "kernels/cuda/device/selection/choose_pages.cuh"
#include "kernels/cuda/device/selection/page_bounds.cuh"
#include "kernels/cuda/device/selection/page_scores.cuh"
#include "kernels/cuda/for_codes.h"

namespace penstock::cuda {
namespace {

template <int kDim>
void EnqueueScores(const ChoosePagesParams& params, void* stream) {
  const int scored = params.pages_max - kAlwaysChosenLast;
  Launch(&ScorePagesKernel<kDim>,
         {.x = (scored + kScoredPages - 1) / kScoredPages,
          .y = params.kv_heads,
          .z = params.count,
          .threads = kScoreThreads},
         params, stream);
}

}  // namespace

void FindPageBounds(const PageBoundsParams& params, void* stream) {
  ForShape(params.kv, [&]<KvCode kKeys, KvCode, int kDim>() {
    using Tiles = KeyTiles<kKeys, kDim>;
    Launch(&PageBoundsKernel<kKeys, kDim>,
           {.x = params.count,
            .y = params.kv.kv_heads,
            .threads = Tiles::kThreads,
            .shared_bytes = Tiles::kBytes},
           params, stream);
  });
}

void ChoosePages(const ChoosePagesParams& params, void* stream) {
  if (params.count == 0) return;
  if (params.head_dim == 64) {
    EnqueueScores<64>(params, stream);
  } else {
    EnqueueScores<128>(params, stream);
  }
  Launch(&ChoosePagesKernel,
         {.x = params.count,
          .y = params.kv_heads,
          .threads = kChooseThreads,
          .shared_bytes = sizeof(ChooseShared)},
         params, stream);
}

}  // namespace penstock::cuda
