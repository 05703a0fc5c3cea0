#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct CodecBenchOptions {
  std::string model = "models/penstock-tiny";
  std::string text = "models/text/held_out.txt";
  int32_t rounds = 3;  // best of; codecs and memcpy take turns in every round
  std::string isa;     // "avx2": instead of the best that this machine has
};

// Real keys and values (a prefill of held-out text), repeated to more than the caches hold, in runs
// of 4 MiB, on one core. Rows:
//   NAME_encode, NAME_decode   GB/s of raw bf16, for every codec and for zstd -1 and lz4 on the
//   same
//                              bytes; limit: memcpy of the same runs, in the same rounds
//   NAME_ratio                 raw bytes over encoded ones; limit: 16 / (8 + entropy of exponents)
//   rans_encode, rans_decode   giga-symbols/s on exponents, in cache; limit: memcpy, a byte each
//   cgx2_roundtrip             GB/s of raw bf16, encoded and decoded; limit: half of memcpy
//   memcpy                     GB/s
absl::StatusOr<std::vector<BenchRow>> RunCodecBench(
    const CodecBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
