#include "lab/replay/cache_replay.h"

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <numeric>

#include "kvstore/cache/prefix_cache.h"
#include "lab/replay/cache_plot.h"
#include "lab/replay/demotion_replay.h"

namespace penstock {
namespace {

// The smallest page there is: only its number matters here, and it is never touched.
constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 1, .block_tokens = 16};
constexpr BlockId kRoot{};

int64_t LongestPrompt(const CacheTrace& trace) {
  size_t longest = 0;
  for (const CacheRequest& request : trace.requests) {
    longest = std::max(longest, request.blocks.size());
  }
  return static_cast<int64_t>(longest);
}

// Serves one request and returns how many of its blocks were there.
absl::StatusOr<size_t> Serve(const CacheRequest& request, const CacheReplay& replay,
                             BlockPool& pool, PrefixCache& cache) {
  const TimePoint now{
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(request.at_s + 1))};
  const std::span<const BlockId> ids = BlocksToKeep(request, replay.keeps_partial);
  PrefixCache::Found found = cache.Lookup(kRoot, ids, now);
  const size_t hits = found.blocks.size();
  ASSIGN_OR_RETURN(BlockCredit credit, pool.Reserve(static_cast<int64_t>(ids.size() - hits)));
  for (BlockRef& block : credit.Take(credit.blocks())) found.blocks.push_back(std::move(block));
  cache.Insert(found.access, kRoot, ids, found.blocks);
  found.blocks.clear();
  cache.Evict(cache.blocks() - replay.capacity, now);
  return hits;
}

absl::StatusOr<std::vector<CacheTrace>> LoadTraces(const CacheBenchOptions& options) {
  std::vector<CacheTrace> traces;
  for (const std::string& path : options.traces) {
    ASSIGN_OR_RETURN(CacheTrace trace, LoadCacheTrace(path, options.block_tokens));
    traces.push_back(std::move(trace));
  }
  if (traces.empty()) traces.push_back(MakeCacheTrace(10000));
  return traces;
}

std::vector<std::string> PolicyNames() {
  return std::vector<std::string>(absl::StrSplit(std::string(kCachePolicies), ','));
}

// Writes to and hits in NVMe below `dram_blocks` of host memory, against plain demotion.
absl::Status AppendDemotionRows(const CacheTrace& trace, uint32_t dram_blocks,
                                std::vector<BenchRow>& rows) {
  const uint32_t nvme_blocks = 16 * dram_blocks;
  ASSIGN_OR_RETURN(const DemotionCounts plain,
                   ReplayDemotion(trace, dram_blocks, nvme_blocks, kPlainDemotion));
  for (const uint32_t uses : {1u, 2u}) {
    ASSIGN_OR_RETURN(const DemotionCounts counts,
                     ReplayDemotion(trace, dram_blocks, nvme_blocks, {.uses_min = uses}));
    const auto row = [&](const char* what, int64_t value, int64_t limit) {
      rows.push_back({.name = fmt::format("{}/nvme_{}@min_uses={}", trace.name, what, uses),
                      .value = static_cast<double>(value),
                      .unit = "blocks",
                      .limit = static_cast<double>(limit),
                      .fraction = static_cast<double>(value) /
                                  static_cast<double>(std::max<int64_t>(limit, 1))});
    };
    row("writes", counts.writes, plain.writes);
    row("hits", counts.hits, plain.hits);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<size_t>> ReplayHits(const CacheTrace& trace, const CacheReplay& replay) {
  ASSIGN_OR_RETURN(const auto pool,
                   BlockPool::Create(kLayout, replay.capacity + LongestPrompt(trace)));
  ASSIGN_OR_RETURN(auto policy, MakeCachePolicy(replay.policy, replay.capacity));
  PrefixCache cache(*pool, std::move(policy), {}, nullptr);
  std::vector<size_t> hits;
  for (const CacheRequest& request : trace.requests) {
    ASSIGN_OR_RETURN(const size_t hit, Serve(request, replay, *pool, cache));
    hits.push_back(hit);
  }
  return hits;
}

absl::StatusOr<double> ReplayHitRate(const CacheTrace& trace, const CacheReplay& replay) {
  ASSIGN_OR_RETURN(const std::vector<size_t> hits, ReplayHits(trace, replay));
  size_t asked = 0;
  for (const CacheRequest& request : trace.requests) asked += request.blocks.size();
  const size_t hit = std::accumulate(hits.begin(), hits.end(), size_t{0});
  return static_cast<double>(hit) / static_cast<double>(std::max<size_t>(asked, 1));
}

double IdealHitRate(const CacheTrace& trace) {
  absl::flat_hash_set<BlockId> seen;
  size_t hits = 0, asked = 0;
  for (const CacheRequest& request : trace.requests) {
    for (const BlockId& id : request.blocks) hits += seen.insert(id).second ? 0 : 1;
    asked += request.blocks.size();
  }
  return static_cast<double>(hits) / static_cast<double>(std::max<size_t>(asked, 1));
}

absl::StatusOr<std::vector<BenchRow>> RunCacheBench(
    const CacheBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  ASSIGN_OR_RETURN(const std::vector<CacheTrace> traces, LoadTraces(options));
  std::vector<BenchRow> rows;
  std::vector<CachePlot> plots;
  for (const CacheTrace& trace : traces) {
    const double ideal = IdealHitRate(trace);
    CachePlot& plot =
        plots.emplace_back(CachePlot{.title = trace.name, .ideal = ideal, .lines = {}});
    for (const std::string& policy : PolicyNames()) {
      progress(fmt::format("{}: {}", trace.name, policy));
      CachePlotLine& line = plot.lines.emplace_back(CachePlotLine{.name = policy, .points = {}});
      for (const int64_t capacity : options.capacities) {
        ASSIGN_OR_RETURN(const double rate,
                         ReplayHitRate(trace, {.policy = policy,
                                               .capacity = capacity,
                                               .keeps_partial = options.keeps_partial}));
        line.points.push_back({static_cast<double>(capacity), rate});
        rows.push_back({.name = fmt::format("{}/{}@{}", trace.name, policy, capacity),
                        .value = rate,
                        .unit = "hit rate",
                        .limit = ideal,
                        .fraction = ideal > 0 ? rate / ideal : 0});
      }
    }
  }
  for (const CacheTrace& trace : traces) {
    progress(trace.name + ": NVMe");
    RETURN_IF_ERROR(AppendDemotionRows(trace, options.dram_blocks, rows));
  }
  if (!options.plot.empty()) RETURN_IF_ERROR(WriteCachePlots(plots, options.plot));
  return rows;
}

}  // namespace penstock
