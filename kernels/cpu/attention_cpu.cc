#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_rows.h"

// FlashAttention-2 (Dao, arXiv 2307.08691; online softmax: Milakov and Gimelshein, arXiv
// 1805.02867) over a paged KV cache. A task is one KV head of one sequence, some of its query heads
// and a range of positions. Its rows are pairs (position, query head), divided into blocks of
// kTileRows. Each tile of keys and values is packed once into the panels of a matrix product; then
// every block computes its scores, updates its running maximum and sum, and adds to its output. All
// arithmetic is in SimdOps.

namespace penstock {
namespace {

constexpr int64_t kMaxBlocks = 16;
constexpr int64_t kScorePanels = kKvTile / kTileColumns;
constexpr int64_t kTileFloats = kTileRows * kTileColumns;

int64_t Panels(int64_t columns) { return (columns + kTileColumns - 1) / kTileColumns; }

// The scratch memory of one thread, divided into its arrays. Sizes are multiples of 64 bytes.
struct Workspace {
  Workspace(std::byte* memory, int64_t head_dim, bool centred) {
    auto next = reinterpret_cast<uintptr_t>(memory);
    const auto take = [&next](int64_t size) {
      return reinterpret_cast<std::byte*>(std::exchange(next, next + static_cast<uintptr_t>(size)));
    };
    const int64_t padded = Panels(head_dim) * kTileColumns;
    keys = reinterpret_cast<Bf16*>(take(kKvTile * padded * 2));
    values = reinterpret_cast<Bf16*>(take(kKvTile * padded * 2));
    key_rows = reinterpret_cast<Bf16*>(take(kKvTile * padded * 2));
    value_rows = reinterpret_cast<Bf16*>(take(kKvTile * padded * 2));
    zeros = reinterpret_cast<const Bf16*>(take(padded * 2));
    queries = take(kMaxBlocks * kTileRows * padded * 4);
    centre_queries = take(centred ? kMaxBlocks * kTileRows * padded * 4 : 0);
    output = reinterpret_cast<float*>(take(kMaxBlocks * kTileRows * padded * 4));
    scores = reinterpret_cast<float*>(take(kScorePanels * kTileFloats * 4));
    weights = take(kTileRows * kKvTile * 4);
    max = reinterpret_cast<float*>(take(kMaxBlocks * kTileRows * 4));
    sum = reinterpret_cast<float*>(take(kMaxBlocks * kTileRows * 4));
    positions = reinterpret_cast<int64_t*>(take(kMaxBlocks * kTileRows * 8));
    bytes = next - reinterpret_cast<uintptr_t>(memory);
  }

  Bf16* keys;      // panels [2][head_dim / 2][32][2]
  Bf16* values;    // panels [head_dim / 32][32][32][2]
  Bf16* key_rows;  // decoded rows of quantised pages, [64][head_dim]
  Bf16* value_rows;
  const Bf16* zeros;          // never written: stands for positions without a page
  std::byte* queries;         // activations, per block [head_dim / 2][rows][2]
  std::byte* centre_queries;  // the same, for the product with PositionAngles
  float* output;              // per block [head_dim / 32][rows][32], before the division by sum
  float* scores;              // of one block [2][rows][32]
  std::byte* weights;         // activations of one block [rows][64]
  float* max;                 // running maximum per row
  float* sum;
  int64_t* positions;
  size_t bytes;
};

// The tokens of a tile, in one of the two forms in which pages with a span have them.
struct TileForm {
  int64_t tile = 0;
  bool recent = false;  // in bf16, for the queries of the tile's span
};

// Consecutive tokens of a tile that lie in one page.
struct KvRun {
  uint32_t page;
  int64_t slot;
  int64_t token;  // index of the first token in the tile
  int64_t count;
};

// Query heads that have their keys and values in one KV head.
struct QueryHeads {
  int32_t kv_head;
  int64_t first;
  int64_t count;
};

// Computes the rows of positions [position, position + positions) for some query heads of one KV
// head. Lives on one thread during one call of Attention.
class Task {
 public:
  Task(const AttentionArgs& args, const AttentionSequence& sequence, const QueryHeads& heads,
       int64_t first, int64_t last, const Workspace& work)
      : args_(args),
        sequence_(sequence),
        kv_head_(heads.kv_head),
        first_head_(heads.first),
        first_(first),
        group_(heads.count),
        rows_((last - first) * group_),
        blocks_((rows_ + kTileRows - 1) / kTileRows),
        head_dim_(args.kv.layout.head_dim),
        value_dim_(args.kv.layout.ValueDim()),
        span_(args.kv.layout.span),
        work_(work),
        simd_(ActiveSimd()) {
    for (int64_t row = 0; row < rows_; ++row) {
      work_.positions[row] = sequence.position + first + row / group_;
    }
  }

  void Run() {
    LoadQueries();
    const int64_t last_tile = Position(rows_ - 1) / kKvTile;
    TileForm form = FirstOf(FirstAttended(Position(0)) / kKvTile);
    Find(form);
    while (form.tile <= last_tile) {
      Decode();
      simd_.pack_keys(next_.keys, head_dim_, work_.keys);
      simd_.pack_values(next_.values, value_dim_, work_.values);
      const TileForm after = After(form);
      Find(after);
      for (int64_t block = 0; block < blocks_; ++block) AddTile(form, block);
      form = after;
    }
    StoreOutput();
  }

 private:
  int64_t FirstRow(int64_t block) const { return rows_ * block / blocks_; }
  int Rows(int64_t block) const { return static_cast<int>(FirstRow(block + 1) - FirstRow(block)); }
  int64_t Position(int64_t row) const { return work_.positions[row]; }
  // The first position that a query at `position` attends to.
  int64_t FirstAttended(int64_t position) const {
    return args_.window == 0 ? 0 : std::max<int64_t>(0, position - args_.window + 1);
  }
  // The span of a position or of a tile's positions. Without spans no row is in a tile's span, so
  // all rows read what is not recent.
  int64_t SpanOf(int64_t position) const { return span_ > 0 ? position / span_ : 0; }
  int64_t SpanOfTile(int64_t tile) const { return span_ > 0 ? SpanOf(tile * kKvTile) : -1; }
  bool Reads(int64_t row, const TileForm& form) const {
    return (SpanOf(Position(row)) == SpanOfTile(form.tile)) == form.recent;
  }
  // The first form of a tile that some row reads.
  TileForm FirstOf(int64_t tile) const {
    return {.tile = tile, .recent = Reads(rows_ - 1, {tile, true})};
  }
  TileForm After(const TileForm& form) const {
    const bool both = SpanOf(Position(0)) <= SpanOfTile(form.tile);
    if (!form.recent && both) return {.tile = form.tile, .recent = true};
    return FirstOf(form.tile + 1);
  }
  int64_t QueriesAt(int64_t block) const {
    return FirstRow(block) * head_dim_ * simd_.activation_bytes;
  }
  bool centred() const { return args_.centre.means.data != nullptr; }
  float* Output(int64_t block) const {
    return work_.output + FirstRow(block) * Panels(value_dim_) * kTileColumns;
  }
  // The address of a row's query: its row in the batch, and its head there.
  int64_t Row(int64_t row) const { return sequence_.first_row + first_ + row / group_; }
  int64_t Head(int64_t row) const { return first_head_ + row % group_; }

  void LoadQueries();
  float* GatherQueries(int64_t block) const;
  void ToCentreFactors(float* query) const;
  void BeginSums();
  void Find(const TileForm& form);
  void AddRun(const KvRun& run);
  void Decode();
  void Prefetch(int64_t points);
  void AddTile(const TileForm& form, int64_t block);
  void Scores(const TileForm& form, int64_t block, int rows);
  void Softmax(const TileForm& form, int64_t block, int rows);
  void StoreOutput();

  const AttentionArgs& args_;
  const AttentionSequence& sequence_;
  const int64_t kv_head_;
  const int64_t first_head_;
  const int64_t first_;  // position of the first row, relative to sequence_.position
  const int64_t group_;  // query heads
  const int64_t rows_;
  const int64_t blocks_;
  const int64_t head_dim_;
  const int64_t value_dim_;  // == head_dim_, unless the pages have latents
  const int64_t span_;
  const Workspace& work_;
  const SimdOps& simd_;
  struct {
    bool plain;  // the rows are read where they are, in bf16
    bool recent;
    // Address of each token's key; for a quantised page, the address that Decode writes it to.
    const Bf16* keys[kKvTile];
    const Bf16* values[kKvTile];
    // Key and value in the page; null for no page.
    const std::byte* codes[kKvTile][2];
    KvRun runs[kKvTile];
    int64_t run_count;
    int64_t prefetched;  // tokens whose prefetch has been issued
  } next_;
};

void Task::LoadQueries() {
  for (int64_t block = 0; block < blocks_; ++block) {
    const int rows = Rows(block);
    if (centred()) {
      float* factors = GatherQueries(block);
      for (int r = 0; r < rows; ++r) ToCentreFactors(factors + r * head_dim_);
      simd_.pack_rows(factors, head_dim_, rows, 0, head_dim_,
                      work_.centre_queries + QueriesAt(block));
    }
    float* queries = GatherQueries(block);
    if (args_.kv.layout.IsRotated(KvPlane::kKeys)) {
      cpu::RotateRows(queries, rows, static_cast<int32_t>(head_dim_));
    }
    simd_.pack_rows(queries, head_dim_, rows, 0, head_dim_, work_.queries + QueriesAt(block));
  }
  std::fill_n(work_.output, rows_ * Panels(value_dim_) * kTileColumns, 0.0f);
  BeginSums();
}

// Collects the queries of a block, which lie one batch row apart, in the output's memory: the
// output is unused until the first tile.
float* Task::GatherQueries(int64_t block) const {
  float* gathered = Output(block);
  for (int r = 0; r < Rows(block); ++r) {
    const int64_t row = FirstRow(block) + r;
    std::copy_n(args_.queries.row(Row(row)) + Head(row) * head_dim_, head_dim_,
                gathered + r * head_dim_);
  }
  return gathered;
}

// Replaces a query by the factors of a position's cosines, sines and ones in its product with the
// mean at that position.
void Task::ToCentreFactors(float* query) const {
  const float* mean = args_.centre.means.row(kv_head_);
  const int64_t pairs = args_.centre.angles->pairs();
  for (int64_t i = 0; i < pairs; ++i) {
    const float first = query[i], second = query[pairs + i];
    query[i] = first * mean[i] + second * mean[pairs + i];
    query[pairs + i] = second * mean[i] - first * mean[pairs + i];
  }
  for (int64_t d = 2 * pairs; d < head_dim_; ++d) query[d] *= mean[d];
}

// A sink is the first score of its rows, with the weight exp(sink - max) = 1.
void Task::BeginSums() {
  const bool sinks = !args_.sinks.empty();
  std::fill_n(work_.max, rows_, -std::numeric_limits<float>::infinity());
  std::fill_n(work_.sum, rows_, sinks ? 1.0f : 0.0f);
  if (!sinks) return;
  for (int64_t row = 0; row < rows_; ++row) {
    work_.max[row] = args_.sinks[static_cast<size_t>(Head(row))];
  }
}

// Sets the addresses of a tile's keys and values for the positions that this task attends to. Other
// positions may have no page or stale bytes, so they read zeros.
void Task::Find(const TileForm& form) {
  const int64_t tile = form.tile;
  next_.recent = form.recent;
  next_.plain = form.recent || args_.kv.layout.dtype == KvDtype::kBf16;
  std::fill_n(next_.keys, kKvTile, work_.zeros);
  std::fill_n(next_.values, kKvTile, work_.zeros);
  std::fill_n(&next_.codes[0][0], 2 * kKvTile, nullptr);
  next_.run_count = 0;
  next_.prefetched = 0;
  const int64_t begin = std::max(FirstAttended(Position(0)), tile * kKvTile);
  const int64_t end = std::min(Position(rows_ - 1) + 1, (tile + 1) * kKvTile);
  const int64_t page_tokens = args_.kv.layout.block_tokens;
  const std::span<const uint32_t> blocks =
      sequence_.blocks.subspan(static_cast<size_t>(kv_head_ * sequence_.head_blocks));
  for (int64_t position = begin; position < end;) {
    const int64_t slot = position % page_tokens;
    const int64_t count = std::min(end - position, page_tokens - slot);
    AddRun({.page = blocks[static_cast<size_t>(position / page_tokens)],
            .slot = slot,
            .token = position - tile * kKvTile,
            .count = count});
    position += count;
  }
}

void Task::AddRun(const KvRun& run) {
  next_.runs[next_.run_count++] = run;
  const KvLayout& layout = args_.kv.layout;
  const auto head = static_cast<int32_t>(kv_head_);
  const bool recent = next_.recent;
  const std::byte* page = args_.kv.Layer(run.page, args_.layer + (recent ? 1 : 0));
  const auto row = [&](KvPlane plane, int64_t slot) {
    return page + (recent ? layout.RecentAt(head, plane, slot) : layout.CodesAt(head, plane, slot));
  };
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t token = run.token + i;
    const std::byte* key = row(KvPlane::kKeys, run.slot + i);
    const std::byte* value = row(KvPlane::kValues, run.slot + i);
    next_.codes[token][0] = key;
    next_.codes[token][1] = layout.HasLatents() ? nullptr : value;
    const bool plain = next_.plain;
    next_.keys[token] =
        plain ? reinterpret_cast<const Bf16*>(key) : work_.key_rows + token * head_dim_;
    next_.values[token] =
        plain ? reinterpret_cast<const Bf16*>(value) : work_.value_rows + token * head_dim_;
  }
  if (!recent && layout.ScaleBytes() > 0) {
    __builtin_prefetch(page + layout.ScalesAt(head, KvPlane::kKeys, run.slot), 0, 2);
    __builtin_prefetch(page + layout.ScalesAt(head, KvPlane::kValues, run.slot), 0, 2);
  }
}

// Decodes the tile's rows of quantised pages. The result stays in the first-level cache.
void Task::Decode() {
  if (next_.plain) return;
  for (int64_t i = 0; i < next_.run_count; ++i) {
    const KvRun& run = next_.runs[i];
    KvRowsAt at{.block = run.page,
                .layer = args_.layer,
                .kv_head = static_cast<int32_t>(kv_head_),
                .slot = run.slot};
    cpu::LoadKvRows(args_.kv, at, run.count, work_.key_rows + run.token * head_dim_);
    at.plane = KvPlane::kValues;
    cpu::LoadKvRows(args_.kv, at, run.count, work_.value_rows + run.token * head_dim_);
  }
}

// Prefetches a share of the next tile; `points` calls cover the whole tile. A decode step reads
// every key and value once, from memory, in pieces of one page: the runs are too short for the
// hardware prefetcher. Each call issues few prefetches, because a core can have only about a dozen
// lines outstanding.
void Task::Prefetch(int64_t points) {
  const int64_t stop =
      std::min<int64_t>(kKvTile, next_.prefetched + (kKvTile + points - 1) / points);
  constexpr size_t kLine = 64;
  const KvLayout& layout = args_.kv.layout;
  const size_t plain = static_cast<size_t>(head_dim_) * sizeof(Bf16);
  const size_t bytes[2] = {next_.plain ? plain : layout.RowBytes(KvPlane::kKeys),
                           next_.plain ? plain : layout.RowBytes(KvPlane::kValues)};
  for (; next_.prefetched < stop; ++next_.prefetched) {
    for (int plane = 0; plane < 2; ++plane) {
      const std::byte* codes = next_.codes[next_.prefetched][plane];
      if (codes == nullptr) continue;
      for (size_t i = 0; i < bytes[plane]; i += kLine) __builtin_prefetch(codes + i, 0, 2);
    }
  }
}

void Task::AddTile(const TileForm& form, int64_t block) {
  const int rows = Rows(block);
  const int64_t first = FirstRow(block), last = first + rows - 1;
  const int64_t begin = form.tile * kKvTile, end = begin + kKvTile;
  if (Position(last) < begin || FirstAttended(Position(first)) >= end) return;
  const bool read =
      form.recent ? SpanOf(Position(first)) <= SpanOfTile(form.tile) : Reads(last, form);
  if (!read) return;
  Scores(form, block, rows);
  Softmax(form, block, rows);
  for (int64_t panel = 0; panel < Panels(value_dim_); ++panel) {
    simd_.multiply_weights(rows, work_.weights, work_.values + panel * kKvTile * kTileColumns,
                           Output(block) + panel * rows * kTileColumns);
  }
}

void Task::Scores(const TileForm& form, int64_t block, int rows) {
  const bool adds_centre = centred() && !form.recent;
  for (int64_t panel = 0; panel < kScorePanels; ++panel) {
    const int64_t at = panel * head_dim_ * kTileColumns;
    float* scores = work_.scores + panel * kTileFloats;
    std::fill_n(scores, rows * kTileColumns, 0.0f);
    simd_.multiply_tile(rows, head_dim_ / 2, work_.queries + QueriesAt(block), work_.keys + at,
                        scores);
    if (!adds_centre) continue;
    simd_.multiply_tile(rows, head_dim_ / 2, work_.centre_queries + QueriesAt(block),
                        args_.centre.angles->tile(form.tile) + at, scores);
  }
}

void Task::Softmax(const TileForm& form, int64_t block, int rows) {
  const int64_t begin = form.tile * kKvTile, end = begin + kKvTile;
  float* output = Output(block);
  for (int r = 0; r < rows; ++r) {
    Prefetch(rows);
    const int64_t row = FirstRow(block) + r;
    const int64_t first = std::max(FirstAttended(Position(row)), begin) - begin;
    const int64_t last = std::min(Position(row) + 1, end) - begin;
    std::byte* weights = work_.weights + r * kKvTile * simd_.activation_bytes;
    // A row that attends to no position here adds zeros, which change no bit.
    if (first >= last || !Reads(row, form)) {
      std::fill_n(weights, kKvTile * simd_.activation_bytes, std::byte{0});
      continue;
    }
    const float correction = simd_.softmax_row(
        {.scores = {work_.scores + r * kTileColumns, work_.scores + kTileFloats + r * kTileColumns},
         .first = static_cast<int>(first),
         .last = static_cast<int>(last),
         .scale = args_.scale,
         .cap = args_.cap,
         .max = work_.max + row,
         .sum = work_.sum + row,
         .weights = weights});
    if (correction == 1.0f) continue;
    for (int64_t panel = 0; panel < Panels(value_dim_); ++panel) {
      simd_.scale(output + (panel * rows + r) * kTileColumns, kTileColumns, correction);
    }
  }
}

void Task::StoreOutput() {
  const bool rotated = args_.kv.layout.IsRotated(KvPlane::kValues);
  for (int64_t block = 0; block < blocks_; ++block) {
    const int rows = Rows(block);
    for (int r = 0; r < rows; ++r) {
      const int64_t row = FirstRow(block) + r;
      const float inverse = 1.0f / work_.sum[row];
      float* target = args_.output.row(Row(row)) + Head(row) * value_dim_;
      for (int64_t d = 0; d < value_dim_; ++d) {
        const int64_t panel = d / kTileColumns;
        target[d] = Output(block)[(panel * rows + r) * kTileColumns + d % kTileColumns] * inverse;
      }
      if (rotated) cpu::RotateRows(target, 1, static_cast<int32_t>(value_dim_));
    }
  }
}

}  // namespace

AttentionScratch::AttentionScratch(int32_t head_dim, int threads, bool centred)
    : head_dim_(head_dim),
      centred_(centred),
      stride_((Workspace(nullptr, head_dim, centred).bytes + 4095) / 4096 * 4096) {
  memory_ = Buffer(stride_ * static_cast<size_t>(threads));
}

PositionAngles::PositionAngles(View<const float, 2> cosines, View<const float, 2> sines,
                               int32_t head_dim)
    : pairs_(cosines.dim(1)), tile_elements_(kKvTile * int64_t{head_dim}) {
  PENSTOCK_CHECK_LE(2 * pairs_, head_dim);
  const int64_t positions = cosines.dim(0), tiles = (positions + kKvTile - 1) / kKvTile;
  panels_ = Buffer(static_cast<size_t>(tiles * tile_elements_) * sizeof(Bf16));
  std::vector<float> floats(static_cast<size_t>(head_dim), 1.0f);
  std::vector<Bf16> rows(static_cast<size_t>(tile_elements_));  // 0 behind the last position
  const Bf16* pointers[kKvTile];
  for (int64_t t = 0; t < kKvTile; ++t) pointers[t] = rows.data() + t * head_dim;
  for (int64_t position = 0; position < positions; ++position) {
    std::copy_n(cosines.row(position), pairs_, floats.data());
    std::copy_n(sines.row(position), pairs_, floats.data() + pairs_);
    const int64_t token = position % kKvTile;
    ActiveSimd().to_bf16(floats.data(), head_dim, rows.data() + token * head_dim);
    if (token + 1 < kKvTile && position + 1 < positions) continue;
    ActiveSimd().pack_keys(pointers, head_dim,
                           panels_.as<Bf16>() + position / kKvTile * tile_elements_);
    std::fill(rows.begin(), rows.end(), Bf16{});
  }
}

namespace {

// The parts that the query heads of a KV head are cut into. Each part packs all keys again, so they
// are no more than give every thread a task.
int64_t HeadParts(const Exec& exec, const AttentionArgs& args, int64_t positions) {
  constexpr int64_t kLeastHeads = 4;
  const int64_t group = args.heads / args.kv.layout.kv_heads;
  int64_t tasks = 0;
  for (const AttentionSequence& s : args.sequences) {
    tasks += (s.rows + positions - 1) / positions * args.kv.layout.kv_heads;
  }
  if (tasks == 0) return 1;
  return std::clamp<int64_t>(ThreadCount(exec) / tasks, 1,
                             std::max<int64_t>(1, group / kLeastHeads));
}

}  // namespace

void cpu::Attention(const Exec& exec, const AttentionArgs& args) {
  const KvLayout& layout = args.kv.layout;
  PENSTOCK_CHECK_EQ(layout.head_dim % 8, 0);
  PENSTOCK_CHECK(HoldsHeads(layout.dtype, layout.head_dim));
  PENSTOCK_CHECK(!layout.HasLatents() || layout.dtype == KvDtype::kBf16);
  PENSTOCK_CHECK_EQ(layout.span % kKvTile, 0);
  PENSTOCK_CHECK(layout.span == 0 || args.window == 0);
  PENSTOCK_CHECK(args.centre.means.data == nullptr || (layout.centred && args.scratch->centred()));
  PENSTOCK_CHECK_EQ(args.heads % layout.kv_heads, 0);
  PENSTOCK_CHECK_EQ(args.scratch->head_dim(), layout.head_dim);
  PENSTOCK_CHECK(args.sinks.empty() || std::ssize(args.sinks) == args.heads);
  const int64_t group = args.heads / layout.kv_heads;
  PENSTOCK_CHECK_LE(group, kMaxBlocks * kTileRows);
  const int64_t positions = kMaxBlocks * kTileRows / group;  // positions per task
  const int64_t parts = HeadParts(exec, args, positions);
  const int64_t lanes = layout.kv_heads * parts;  // tasks of a range of positions
  int64_t tasks = 0;
  for (const AttentionSequence& s : args.sequences) {
    tasks += (s.rows + positions - 1) / positions * lanes;
  }
  ParallelFor(exec, tasks, [&](int64_t task, int thread) {
    const Workspace work(args.scratch->thread(thread), layout.head_dim, args.scratch->centred());
    for (const AttentionSequence& s : args.sequences) {
      const int64_t ranges = (s.rows + positions - 1) / positions;
      if (task >= ranges * lanes) {
        task -= ranges * lanes;
        continue;
      }
      // The last range attends to the most positions, so it starts first.
      const int64_t first = (ranges - 1 - task / lanes) * positions;
      const int64_t kv_head = task % lanes / parts, part = task % parts;
      const int64_t head = group * part / parts;
      const QueryHeads heads{.kv_head = static_cast<int32_t>(kv_head),
                             .first = kv_head * group + head,
                             .count = group * (part + 1) / parts - head};
      Task(args, s, heads, first, std::min(s.rows, first + positions), work).Run();
      return;
    }
  });
}

}  // namespace penstock
