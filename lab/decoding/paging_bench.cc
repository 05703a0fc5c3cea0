#include "lab/decoding/paging_bench.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <thread>

#include "kernels/cpu/thread_pool.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/paging/disk_pager.h"
#include "lab/micro/kernels_model.h"
#include "model/forward/transformer_runner.h"
#include "model/weights/weights.h"

namespace penstock {
namespace {

constexpr int32_t kSequence = 32'768, kTokensInMemory = 8'192, kSelectedTokens = 1'024;
constexpr int kWarmUp = 48, kTokens = 48;
constexpr float kEmbeddingFactor = 100;

struct Answer {
  std::vector<uint32_t> tokens;
  double seconds = 0;
  DiskPagerStats before, after;  // of its pages
};

// A sequence of kSequence tokens with random KV, whose pages are in a file.
class PagedSequence {
 public:
  static absl::StatusOr<std::unique_ptr<PagedSequence>> Open(TransformerRunner& runner,
                                                             const std::string& directory,
                                                             int32_t tokens_in_memory) {
    const KvLayout layout = runner.kv_layout();
    const int64_t blocks = layout.BlocksFor(kSequence + kWarmUp + kTokens);
    const uint64_t memory =
        static_cast<uint64_t>(layout.BlocksFor(tokens_in_memory)) * layout.BlockStride();
    ASSIGN_OR_RETURN(auto pager, DiskPager::Create(layout, {.directory = directory,
                                                            .blocks = blocks,
                                                            .memory_bytes = memory}));
    ASSIGN_OR_RETURN(auto pool, BlockPool::CreateOver(pager->pages()));
    return std::unique_ptr<PagedSequence>(
        new PagedSequence(runner, std::move(pager), std::move(pool)));
  }

  // The likeliest tokens, one after the other. The first ones, which compute the bounds of all
  // pages and find out whether guesses of pages pay, are not timed.
  absl::StatusOr<Answer> Decode() {
    Answer answer;
    for (int i = 0; i < kWarmUp + kTokens; ++i) {
      if (i == kWarmUp) {
        answer.before = pager_->stats();
        begun_ = std::chrono::steady_clock::now();
      }
      ASSIGN_OR_RETURN(const uint32_t next,
                       Step(i, answer.tokens.empty() ? 1 : answer.tokens.back()));
      answer.tokens.push_back(next);
    }
    answer.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
    answer.after = pager_->stats();
    return answer;
  }

 private:
  PagedSequence(TransformerRunner& runner, std::unique_ptr<DiskPager> pager,
                std::unique_ptr<BlockPool> pool)
      : runner_(runner), pager_(std::move(pager)), pool_(std::move(pool)) {
    blocks_ = pool_->Reserve(pool_->blocks_total())->Take(pool_->blocks_total());
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<Bf16> values(65'537);  // a prime number, so that pages differ
    for (Bf16& value : values) value = ToBf16(normal(random));
    const PagedKv kv = pool_->view();
    size_t at = 0;
    for (const BlockRef& block : blocks_) {
      table_.push_back(block.id());
      auto* const page = reinterpret_cast<Bf16*>(kv.Block(block.id()));
      for (size_t i = 0; i < kv.layout.PayloadBytes() / sizeof(Bf16); ++i) {
        page[i] = values[at++ % values.size()];
      }
    }
  }

  absl::StatusOr<uint32_t> Step(int index, uint32_t token) {
    const SequenceStep step{
        .tokens = {&token, 1},
        .position = kSequence + index,
        .blocks = table_,
        .selection = {.pages = kSelectedTokens / runner_.kv_layout().block_tokens,
                      .from = kSequence,
                      .checked = kSequence + index + 1},
        .wants_logits = true};
    std::vector<float> logits(static_cast<size_t>(runner_.vocab()));
    RETURN_IF_ERROR(runner_.Step({.sequences = {&step, 1},
                                  .kv = pool_->view(),
                                  .logits = {logits.data(), {1, runner_.vocab()}}}));
    return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  TransformerRunner& runner_;
  const std::unique_ptr<DiskPager> pager_;
  const std::unique_ptr<BlockPool> pool_;
  std::vector<BlockRef> blocks_;
  std::vector<uint32_t> table_;
  std::chrono::steady_clock::time_point begun_;
};

// So that a layer changes the residual as little as in trained models, where the pages that a
// layer will choose can be guessed from the layer before.
void EnlargeEmbeddings(Weights& weights) {
  const std::span<Bf16> elements(weights.embedding.as<Bf16>(),
                                 weights.embedding.bytes() / sizeof(Bf16));
  for (Bf16& element : elements) element = ToBf16(ToFloat(element) * kEmbeddingFactor);
}

absl::StatusOr<Answer> Decode(TransformerRunner& runner, const std::string& directory,
                              int32_t tokens_in_memory) {
  ASSIGN_OR_RETURN(const auto sequence, PagedSequence::Open(runner, directory, tokens_in_memory));
  return sequence->Decode();
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunPagingBench(
    const PagingBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  ThreadPool pool(options.threads > 0
                      ? options.threads
                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  ModelConfig shape = TinyLlamaShape();
  shape.max_position = kSequence + kWarmUp + kTokens;
  Weights weights = RandomWeights(shape, 1, 0.02f);
  EnlargeEmbeddings(weights);
  TransformerRunner runner(weights, Exec{.threads = &pool}, 64);
  const std::string directory = options.directory.empty()
                                    ? std::filesystem::temp_directory_path().string()
                                    : options.directory;
  progress("a sequence of 32,768 tokens in memory");
  ASSIGN_OR_RETURN(const Answer all, Decode(runner, directory, 2 * kSequence));
  progress("the same with memory for 8,192 tokens");
  ASSIGN_OR_RETURN(const Answer some, Decode(runner, directory, kTokensInMemory));
  if (all.tokens != some.tokens) {
    return absl::InternalError("pages in a file have changed the tokens of an answer");
  }
  const double fraction = all.seconds / some.seconds;
  const auto misses = static_cast<double>(some.after.misses - some.before.misses);
  const auto hits = static_cast<double>(some.after.hits - some.before.hits);
  const auto read = static_cast<double>(some.after.bytes_read - some.before.bytes_read);
  const double missed = misses / (misses + hits);
  return std::vector<BenchRow>{{"offload_decode_fraction", fraction, "", 0.5, fraction / 0.5},
                               {"offload_resident_token", all.seconds / kTokens * 1000, "ms", 0, 0},
                               {"offload_miss_fraction", missed, "", 1, 1 - missed},
                               {"offload_read_per_token", read / kTokens / 1e6, "MB", 0, 0}};
}

}  // namespace penstock
