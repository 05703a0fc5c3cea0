#include "worker/model_host.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "kernels/isa.h"
#include "kernels/kv_rows.h"
#include "model/load_model.h"

namespace penstock {
namespace {

int ThreadCount(int32_t asked) {
  if (asked > 0) return asked;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Workers agree on tokens only when they also compute alike: the instruction set decides rounding.
uint64_t WithArithmetic(uint64_t fingerprint) {
  for (const char c : IsaName(BestIsa())) {
    fingerprint = (fingerprint ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return fingerprint;
}

absl::StatusOr<KvDtype> FormatFor(const std::string& kv_format, int32_t head_dim) {
  const std::optional<KvDtype> dtype = KvDtypeOf(kv_format);
  if (!dtype) {
    return InvalidArgument("kv_format is '{}', it is one of bf16, f8, i8, i4r, k8v4", kv_format);
  }
  if (!HoldsHeads(*dtype, head_dim)) {
    return InvalidArgument(
        "kv_format is {}, which holds heads of multiples of 16 dimensions up to {}; this model's "
        "have {}: use bf16",
        kv_format, kQuantisedHeadMax, head_dim);
  }
  return *dtype;
}

absl::StatusOr<int64_t> BlocksIn(const std::string& kv_memory, const KvLayout& layout) {
  ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(kv_memory));
  const auto blocks = static_cast<int64_t>(bytes / layout.BlockStride());
  if (blocks < 1) {
    return InvalidArgument("kv_memory is {}; one block of this model takes {}", kv_memory,
                           FormatBytes(layout.BlockStride()));
  }
  return blocks;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::Open(const Options& options) {
  ASSIGN_OR_RETURN(LoadedModel model, LoadModel(options.model));
  auto host = std::make_unique<ModelHost>();
  host->weights = std::move(model.weights);
  host->fingerprint = WithArithmetic(model.fingerprint);
  host->threads = std::make_unique<ThreadPool>(ThreadCount(options.threads));
  host->runner = std::make_unique<TransformerRunner>(
      host->weights, Exec{.threads = host->threads.get()}, options.step_tokens);
  host->layout = host->runner->kv_layout();
  host->layout.block_tokens = options.block_tokens;
  ASSIGN_OR_RETURN(host->layout.dtype, FormatFor(options.kv_format, host->layout.head_dim));
  ASSIGN_OR_RETURN(const int64_t blocks, BlocksIn(options.kv_memory, host->layout));
  ASSIGN_OR_RETURN(host->pool, BlockPool::Create(host->layout, blocks));
  return host;
}

}  // namespace penstock
