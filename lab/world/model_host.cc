// Takes the place of worker/model/model_host.cc: no checkpoint is read.
#include "lab/world/model_host.h"

#include <cstdlib>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "worker/model/model_host.h"

namespace penstock::world {
namespace {

OpenModel& TheModels() {
  static OpenModel models;
  return models;
}

absl::StatusOr<std::unique_ptr<BlockPool>> MakePool(const SimModel& model, const KvLayout& layout,
                                                    int64_t blocks) {
  if (model.make_copier == nullptr) return BlockPool::Create(layout, blocks);
  constexpr size_t kAlignment = 4096;
  const size_t bytes = static_cast<size_t>(blocks) * layout.BlockStride();
  auto* const arena = static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes));
  PENSTOCK_CHECK(arena != nullptr);
  return BlockPool::CreateOver({.arena = arena,
                                .blocks = blocks,
                                .layout = layout,
                                .copier = model.make_copier(arena, layout)});
}

}  // namespace

void SetModels(OpenModel open) { TheModels() = std::move(open); }

}  // namespace penstock::world

namespace penstock {

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::Open(const Options& options) {
  PENSTOCK_CHECK(world::TheModels() != nullptr, "SetModels was not called");
  const world::SimModel model = world::TheModels()(options.model);
  auto host = std::make_unique<ModelHost>();
  host->name = options.model;
  host->fingerprint = host->checkpoint_fingerprint = model.fingerprint;
  host->numerics = options.numerics;
  host->runner = model.runner;
  host->layout = host->runner->kv_layout();
  ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(options.kv_memory));
  const auto blocks = static_cast<int64_t>(bytes / host->layout.BlockStride());
  ASSIGN_OR_RETURN(host->pool, world::MakePool(model, host->layout, blocks));
  return host;
}

}  // namespace penstock
