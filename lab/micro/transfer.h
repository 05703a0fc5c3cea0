#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct TransferBenchOptions {
  size_t message_bytes = size_t{2} << 20;
  int messages = 400;  // in a measured round
  int warm_up = 50;    // before it
  int under_way = 8;
  int rounds = 8;  // each measures all; the best of every figure counts
  // Measures the limit; from Debian's package ucx-utils. Not there: limit and fraction are 0.
  std::string perftest = "ucx_perftest";
};

// GB/s (10^9) of one lane from one process to another on this machine, both through our wire:
//   wire_2mib         the same-host lane, against ucx_perftest over posix and cma
//   wire_2mib_plain   TCP without certificates, against ucx_perftest over TCP
//   wire_2mib_sealed  TCP between members, against 1 / (1 / plain + 1 / AES-128-GCM), which is what
//                     a core can do that sends or receives and seals or opens in turns
// The limit of the first two is the better of ucx_perftest's two ways to wait, measured in turns
// with ours, and like
// ours from one buffer to one buffer. Forks: FAILED_PRECONDITION when the process has threads.
absl::StatusOr<std::vector<BenchRow>> RunTransferBench(const TransferBenchOptions& options);

}  // namespace penstock
