#include "model/cuda/eviction/cuda_evictor.h"

#include <algorithm>

#include "base/check.h"

namespace penstock {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int32_t kSmallestPage = 16;  // tokens

bool SharesBlock(std::span<const uint32_t> from, std::span<const uint32_t> to) {
  const size_t both = std::min(from.size(), to.size());
  return !std::equal(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(both), to.begin(),
                     [](uint32_t a, uint32_t b) { return a != b; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaEvictor>> CudaEvictor::Create(const cuda::CudaDevice& device,
                                                                 const Sizes& sizes) {
  std::unique_ptr<CudaEvictor> evictor(new CudaEvictor(device, sizes));
  RETURN_IF_ERROR(evictor->Allocate());
  return evictor;
}

absl::Status CudaEvictor::Allocate() {
  device_.Select();
  const auto tokens = static_cast<size_t>(sizes_.tokens_max);
  const auto kv_heads = static_cast<size_t>(sizes_.kv_heads);
  const auto create = [](cuda::DeviceBuffer& buffer, size_t bytes) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, cuda::DeviceBuffer::Create(bytes, "evictions of KV"));
    return absl::OkStatus();
  };
  const size_t table_bytes = (tokens / kSmallestPage + 1) * sizeof(uint32_t);
  const size_t query_width = static_cast<size_t>(sizes_.heads) * sizes_.head_dim;
  RETURN_IF_ERROR(create(from_, table_bytes));
  RETURN_IF_ERROR(create(to_, table_bytes));
  RETURN_IF_ERROR(create(scores_, kv_heads * tokens * sizeof(float)));
  RETURN_IF_ERROR(create(slots_, kv_heads * tokens * sizeof(uint32_t)));
  RETURN_IF_ERROR(create(queries_, cuda::kScoredQueriesMax * query_width * sizeof(Bf16)));
  RETURN_IF_ERROR(create(
      scratch_, cuda::KeyScoreScratchFloats(sizes_.tokens_max, sizes_.kv_heads,
                                            sizes_.heads / sizes_.kv_heads, sizes_.head_dim) *
                    sizeof(float)));
  stream_ = cuda::CreateStream(/*high_priority=*/false);
  return cuda::TakeStatus("evictions of KV");
}

CudaEvictor::~CudaEvictor() {
  device_.Select();
  if (stream_ == nullptr) return;
  cuda::Synchronize(stream_);
  cuda::DestroyStream(stream_);
}

// The pages are lost with a GPU that fails.
void CudaEvictor::Finish(const char* what) {
  cuda::Synchronize(stream_);
  PENSTOCK_CHECK_EQ(Message(cuda::TakeStatus(what)), "");
}

void CudaEvictor::ToDevice(const cuda::DeviceBuffer& to, const void* from, size_t bytes) {
  PENSTOCK_CHECK_LE(bytes, to.bytes());
  cuda::CopyToDevice(to.as<void>(), from, bytes, stream_);
}

// Also copies the block table.
cuda::KeyScoreParams CudaEvictor::ParamsOf(const KeyScoresArgs& args) {
  const KvLayout& layout = args.kv.layout;
  PENSTOCK_CHECK_EQ(layout.kv_heads, sizes_.kv_heads);
  PENSTOCK_CHECK_EQ(args.scores.dim(0), layout.kv_heads);
  PENSTOCK_CHECK_GE(args.scores.dim(1), args.tokens);
  PENSTOCK_CHECK_LE(args.tokens, sizes_.tokens_max);
  const auto blocks = static_cast<size_t>(layout.BlocksFor(args.tokens));
  ToDevice(from_, args.blocks.first(blocks).data(), blocks * sizeof(uint32_t));
  const float cap = args.cap;
  return {.kv = cuda::PlanesOf(args.kv, args.layer),
          .table = from_.as<uint32_t>(),
          .tokens = static_cast<int32_t>(args.tokens),
          .scores = scores_.as<float>(),
          .score_stride = args.tokens,
          .scratch = scratch_.as<float>(),
          .queries = queries_.as<Bf16>(),
          .group = sizes_.heads / sizes_.kv_heads,
          .scale_log2 = kLog2E * (cap != 0 ? cap : args.scale),
          .cap_factor = cap != 0 ? 2 * kLog2E * args.scale / cap : 0};
}

void CudaEvictor::Score(const KeyScoresArgs& args) {
  if (args.scoring == KeyScoring::kGiven) return;
  if (!ReadsKeys(args.scoring)) return ScoreKeys(exec_, args);
  BeginScore(args);
  TakeScores(args);
  if (args.scoring == KeyScoring::kLayerAttention) ShareAmongHeads(args);
}

void CudaEvictor::AddAttention(const KeyScoresArgs& args) {
  BeginAttention(args);
  TakeScores(args);
}

void CudaEvictor::Move(const EvictLayerArgs& args, std::span<const std::vector<uint32_t>> kept) {
  BeginMove(args, kept);
  FinishMove();
}

void CudaEvictor::BeginScore(const KeyScoresArgs& args) {
  PENSTOCK_CHECK(ReadsKeys(args.scoring));
  device_.Select();
  const cuda::KeyScoreParams params = ParamsOf(args);
  if (args.scoring == KeyScoring::kKeyDifference) return cuda::ScoreKeyDifferences(params, stream_);
  if (args.scoring == KeyScoring::kKeyNorm) return cuda::ScoreKeyNorms(params, stream_);
  const auto floats = static_cast<size_t>(params.kv.kv_heads * args.tokens);
  cuda::FillDevice(params.scores, 0, floats * sizeof(float), stream_);
  AddQueries(args, params);
}

void CudaEvictor::BeginAttention(const KeyScoresArgs& args) {
  device_.Select();
  const cuda::KeyScoreParams params = ParamsOf(args);
  for (int32_t head = 0; head < params.kv.kv_heads; ++head) {
    cuda::CopyToDevice(params.scores + head * args.tokens, args.scores.row(head),
                       static_cast<size_t>(args.tokens) * sizeof(float), stream_);
  }
  AddQueries(args, params);
}

// Adds the attention of all queries, some after the others.
void CudaEvictor::AddQueries(const KeyScoresArgs& args, cuda::KeyScoreParams params) {
  const int64_t rows = args.queries.dim(0);
  PENSTOCK_CHECK_EQ(args.heads, sizes_.heads);
  PENSTOCK_CHECK_GE(rows, 1);
  PENSTOCK_CHECK_LE(rows, args.tokens);
  for (int64_t first = 0; first < rows; first += params.observed) {
    params.observed =
        static_cast<int32_t>(std::min<int64_t>(rows - first, cuda::kScoredQueriesMax));
    params.first = static_cast<int32_t>(args.tokens - rows + first);
    params.tokens = params.first + params.observed;  // no query sees what is behind
    PackQueries(args, first, params.observed);
    ToDevice(queries_, packed_.data(), packed_.size() * sizeof(Bf16));
    cuda::AddKeyAttention(params, stream_);
  }
}

// The runner's queries are bf16, so nothing is rounded.
void CudaEvictor::PackQueries(const KeyScoresArgs& args, int64_t first, int64_t count) {
  const int64_t width = int64_t{sizes_.heads} * sizes_.head_dim;
  packed_.resize(static_cast<size_t>(count * width));
  for (int64_t i = 0; i < count; ++i) {
    std::transform(args.queries.row(first + i), args.queries.row(first + i) + width,
                   packed_.begin() + i * width, ToBf16);
  }
}

void CudaEvictor::TakeScores(const KeyScoresArgs& args) {
  device_.Select();
  for (int32_t head = 0; head < sizes_.kv_heads; ++head) {
    cuda::CopyToHost(args.scores.row(head), scores_.as<float>() + head * args.tokens,
                     static_cast<size_t>(args.tokens) * sizeof(float), stream_);
  }
  Finish("scores of keys");
}

void CudaEvictor::BeginMove(const EvictLayerArgs& args,
                            std::span<const std::vector<uint32_t>> kept) {
  device_.Select();
  const KvLayout& layout = args.keys.kv.layout;
  const size_t count = kept.front().size();
  std::vector<uint32_t> slots;
  for (const std::vector<uint32_t>& of_head : kept) {
    PENSTOCK_CHECK_EQ(of_head.size(), count);
    slots.insert(slots.end(), of_head.begin(), of_head.end());
  }
  const auto from_blocks = static_cast<size_t>(layout.BlocksFor(args.keys.tokens));
  const auto to_blocks = static_cast<size_t>(layout.BlocksFor(static_cast<int64_t>(count)));
  ToDevice(from_, args.keys.blocks.first(from_blocks).data(), from_blocks * sizeof(uint32_t));
  ToDevice(to_, args.to.first(to_blocks).data(), to_blocks * sizeof(uint32_t));
  ToDevice(slots_, slots.data(), slots.size() * sizeof(uint32_t));
  cuda::MoveSlots({.kv = cuda::PlanesOf(args.keys.kv, args.keys.layer),
                   .from = from_.as<uint32_t>(),
                   .to = to_.as<uint32_t>(),
                   .slots = slots_.as<uint32_t>(),
                   .kept = static_cast<int32_t>(count),
                   .in_place = SharesBlock(args.keys.blocks, args.to.first(to_blocks))},
                  stream_);
}

void CudaEvictor::FinishMove() {
  device_.Select();
  Finish("an eviction of KV");
}

}  // namespace penstock
