#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct EdgeBenchOptions {
  uint32_t streams = 1000;
  uint32_t stalled = 500;    // clients that read nothing, and that send a byte at a time
  uint32_t tokens = 100;     // a stream
  double tokens_per_s = 20;  // of a stream
  int rounds = 3;            // of the three measurements, in turns; their tokens count together
};

// The delay that the HTTP edge adds to many streams, with workers that send tokens at a pace, those
// of 2 ms together as a decode step does:
//   edge_p50, edge_p99        milliseconds from a token's leaving the worker to its client, over
//                             loopback and through the router; the limit is 5 ms
//   edge_p99_crowded          p99 beside `stalled` ordinary streams more
//   edge_p99_stalled          p99 while `stalled` other clients read nothing or send byte by byte
//   edge_stalled_change       its change against edge_p99, as a fraction; the limit is 0.2
//   edge_stalled_for_crowd    against edge_p99_crowded: what it is that they are slow
//   edge_memory               KiB of this process more for each stream, workers included
//   edge_errors               streams that did not end with every token in its place
absl::StatusOr<std::vector<BenchRow>> RunEdgeBench(
    const EdgeBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
