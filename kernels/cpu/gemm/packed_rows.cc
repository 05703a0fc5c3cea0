#include "kernels/cpu/gemm/packed_rows.h"

#include <algorithm>

#include "kernels/cpu/thread_pool.h"

namespace penstock::gemm {

void PackRows(const Exec& exec, const PackedRows& rows) {
  constexpr int64_t kPackInputs = 1024;  // inputs that one packing task handles
  if (rows.InPlace()) return;
  const int64_t pieces = (rows.inputs + kPackInputs - 1) / kPackInputs;
  ParallelFor(exec, rows.blocks.count * pieces, [&](int64_t task, int) {
    const int64_t block = task / pieces, first = task % pieces * kPackInputs;
    rows.simd.pack_rows(rows.args.input.row(rows.blocks.First(block)), rows.inputs,
                        rows.blocks.Rows(block), first, std::min(rows.inputs, first + kPackInputs),
                        rows.Packed(block, 0));
  });
}

}  // namespace penstock::gemm
