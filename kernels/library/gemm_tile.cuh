#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/device_kernel.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "kernels/library/gemm.h"

// CUTLASS's product for one tile. The weight is the left operand and the rows are the right one
// (their operands are exchanged against the usual order), so that few rows make a narrow tile.

namespace penstock::cuda::library {

template <GemmTile kTile>
struct Gemm {
  static constexpr GemmTileShape kShape = ShapeOf(kTile);
  using Element = cutlass::bfloat16_t;
  using RowMajor = cutlass::layout::RowMajor;
  using ColumnMajor = cutlass::layout::ColumnMajor;
  using Tile =
      cute::Shape<cute::Int<kShape.outputs>, cute::Int<kShape.rows>, cute::Int<kShape.inputs>>;
  using Cluster = cute::Shape<cute::Int<kShape.cluster>, cute::_1, cute::_1>;
  using MainSchedule =
      std::conditional_t<kShape.ping_pong, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                         cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
  using StoreSchedule = std::conditional_t<kShape.ping_pong, cutlass::epilogue::TmaWarpSpecialized,
                                           cutlass::epilogue::TmaWarpSpecializedCooperative>;
  using Store = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, ColumnMajor, 4, float,
      ColumnMajor, 4, StoreSchedule>::CollectiveOp;
  using Main = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, RowMajor, 8, Element,
      ColumnMajor, 8, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Store::SharedStorage))>,
      MainSchedule>::CollectiveOp;
  using Kernel =
      cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Main, Store, void>;

  // What makes the bits the same for every tile: all inputs of an element are added up by one group
  // of warps, in steps of 16, in one visit of the tile.
  static_assert(cute::is_same_v<typename Kernel::TileScheduler,
                                cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90>);
  static_assert(cute::size<2>(typename Main::TiledMma::AtomShape_MNK{}) == 16);
  static_assert(cute::size<3>(typename Main::TiledMma::ThrLayoutVMNK{}) == 1);
  static_assert(cute::is_same_v<typename Main::ElementAccumulator, float>);
  static_assert(Main::DispatchPolicy::Stages >= 4);
  static_assert(Kernel::SharedStorageSize <= 232448);

  static typename Kernel::Arguments ArgumentsOf(const GemmCall& call) {
    const int64_t inputs = call.weight.inputs, outputs = call.weight.outputs;
    const auto* weight = reinterpret_cast<const Element*>(call.weight.data);
    const auto* input = reinterpret_cast<const Element*>(call.input);
    typename Kernel::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm,
                                         {call.weight.outputs, call.rows, call.weight.inputs, 1},
                                         {weight, cute::make_stride(inputs, cute::_1{}, int64_t{0}),
                                          input, cute::make_stride(inputs, cute::_1{}, int64_t{0})},
                                         {{1.0f, 0.0f},
                                          nullptr,
                                          {},
                                          call.output,
                                          cute::make_stride(cute::_1{}, outputs, int64_t{0})}};
    arguments.hw_info.sm_count = call.processors;
    arguments.scheduler.max_swizzle_size = call.swizzle;
    return arguments;
  }

  // The kernel is launched here rather than by CUTLASS's adapter, whose calls take away the error
  // that TakeError() returns.
  static void Run(const GemmCall& call, cudaStream_t stream) {
    typename Kernel::Params params = Kernel::to_underlying_arguments(ArgumentsOf(call), nullptr);
    const void* kernel = reinterpret_cast<const void*>(&cutlass::device_kernel<Kernel>);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         Kernel::SharedStorageSize);
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {.x = static_cast<unsigned>(kShape.cluster), .y = 1, .z = 1};
    cudaLaunchConfig_t config{};
    config.gridDim = Kernel::get_grid_shape(params);
    config.blockDim = Kernel::get_block_shape();
    config.dynamicSmemBytes = Kernel::SharedStorageSize;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = kShape.cluster > 1 ? 1 : 0;
    void* arguments[] = {&params};
    cudaLaunchKernelExC(&config, kernel, arguments);
  }
};

// Defined by one file per tile (gemm_*.cu), which take long to compile.
template <GemmTile kTile>
void RunGemm(const GemmCall& call, void* stream) {
  Gemm<kTile>::Run(call, static_cast<cudaStream_t>(stream));
}

}  // namespace penstock::cuda::library
