#include <fmt/format.h>

#include "base/lifecycle.h"
#include "cli/shell/interrupts.h"
#include "cli/shell/progress.h"
#include "lab/cli/commands.h"
#include "lab/decoding/blend_bench.h"
#include "lab/decoding/eviction_bench.h"
#include "lab/decoding/limited_pool_bench.h"
#include "lab/decoding/paging_bench.h"
#include "lab/decoding/speculative.h"
#include "lab/decoding/structured.h"
#include "lab/micro/codec.h"
#include "lab/micro/index.h"
#include "lab/micro/kernels.h"
#include "lab/micro/model.h"
#include "lab/micro/store.h"
#include "lab/micro/transfer.h"
#include "lab/replay/cache_replay.h"
#include "lab/report/report.h"
#include "lab/router/edge_streams.h"
#include "lab/router/router_added.h"
#include "lab/router/router_streams.h"

namespace penstock {
namespace {

using OnProgress = std::function<void(const std::string&)>;
using Rows = absl::StatusOr<std::vector<BenchRow>>;

// Bandwidth of the wire and overhead of the router. The wire first: it forks, which must come
// before any thread.
Rows RunTransferSuite(const OnProgress& progress) {
  progress("the wire, against ucx_perftest");
  ASSIGN_OR_RETURN(std::vector<BenchRow> rows, RunTransferBench({}));
  ASSIGN_OR_RETURN(const std::vector<BenchRow> router, RunRouterBench({}, progress));
  rows.insert(rows.end(), router.begin(), router.end());
  ASSIGN_OR_RETURN(const std::vector<BenchRow> streams, RunRouterStreamsBench({}, progress));
  rows.insert(rows.end(), streams.begin(), streams.end());
  return rows;
}

Rows RunKvPolicySuite(const BenchOptions& options, const OnProgress& progress) {
  ASSIGN_OR_RETURN(
      std::vector<BenchRow> rows,
      RunEvictionBench({.threads = options.threads, .rounds = options.rounds}, progress));
  ASSIGN_OR_RETURN(const BenchRow blend,
                   RunBlendBench({.threads = options.threads, .rounds = options.rounds}, progress));
  rows.push_back(blend);
  ASSIGN_OR_RETURN(
      const std::vector<BenchRow> limited,
      RunLimitedPoolBench({.threads = options.threads, .rounds = options.rounds}, progress));
  rows.insert(rows.end(), limited.begin(), limited.end());
  ASSIGN_OR_RETURN(
      const std::vector<BenchRow> paging,
      RunPagingBench({.directory = options.directory, .threads = options.threads}, progress));
  rows.insert(rows.end(), paging.begin(), paging.end());
  return rows;
}

Rows RunSuite(const BenchOptions& options, const OnProgress& progress) {
  if (options.suite == "transfer") return RunTransferSuite(progress);
  if (options.suite == "edge") {
    return RunEdgeBench({.tokens_per_s = options.tokens_per_s, .rounds = options.rounds}, progress);
  }
  if (options.suite == "index") return RunIndexBench({}, progress);
  if (options.suite == "codec") {
    return RunCodecBench({.model = options.model,
                          .text = options.text,
                          .rounds = options.rounds,
                          .isa = options.isa},
                         progress);
  }
  if (options.suite == "cache") {
    return RunCacheBench({.traces = options.traces,
                          .block_tokens = options.block_tokens,
                          .keeps_partial = options.partial_blocks,
                          .plot = options.plot},
                         progress);
  }
  if (options.suite == "store") {
    return RunStoreBench({.directory = options.directory, .rounds = options.rounds}, progress);
  }
  if (options.suite == "model") {
    return RunModelBench(
        {.model = options.model, .threads = options.threads, .rounds = options.rounds}, progress);
  }
  if (options.suite == "speculative") {
    return RunSpeculativeBench({.model = options.model,
                                .text = options.text,
                                .threads = options.threads,
                                .rounds = options.rounds},
                               progress);
  }
  if (options.suite == "kv-policy") {
    return RunKvPolicySuite(options, progress);
  }
  if (options.suite == "structured") {
    return RunStructuredBench({.model = options.model,
                               .vocabulary = static_cast<uint32_t>(options.vocabulary),
                               .threads = options.threads},
                              progress);
  }
  return RunKernelBench({.threads = options.threads, .rounds = options.rounds}, progress);
}

}  // namespace

int Run(const BenchOptions& options) {
  EndAtOnceAtSignals();
  Progress progress;
  const Rows rows = RunSuite(options, [&](const std::string& text) { progress.Line(text); });
  if (!rows.ok()) {
    fmt::print(stderr, "penstock bench: {}\n", Message(rows.status()));
    return static_cast<int>(ExitCodeFor(rows.status()));
  }
  const std::string report = options.json ? ToJson(options.suite, MachineName(), *rows)
                                          : ToText(options.suite, MachineName(), *rows);
  fmt::print("{}{}", report, report.ends_with('\n') ? "" : "\n");
  return 0;
}

}  // namespace penstock
