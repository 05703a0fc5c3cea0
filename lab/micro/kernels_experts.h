#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "lab/report/report.h"

namespace penstock {

// Measures decode steps of ExpertsShape in bf16, 4 bits and MXFP4. Rows: moe_decode_b1,
// moe_decode_b1_int4 and moe_decode_b1_mxfp4 in tokens/s, with the limit read bandwidth / bytes of
// the matrices that a step reads (8 of 64 experts in each layer); moe_decode_b8_over_b1, the
// tokens/s at batch 8 over those at batch 1, whose limit is 8 but which experts that few sequences
// share keep far below. Then, in 4 bits and with routers that prefer some experts,
// moe_disk_half and moe_disk_quarter: tokens/s at batch 1 with that share of the experts in memory
// and all of them in a file of the folder for temporary files, with the limit of the same tokens
// with all experts in memory; and the share of experts that were in memory when they were needed,
// moe_disk_half_hits and moe_disk_quarter_hits.
std::vector<BenchRow> MeasureExperts(const Exec& exec, int32_t rounds,
                                     const std::function<void(const std::string&)>& progress);

}  // namespace penstock
