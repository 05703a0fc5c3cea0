#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "tests/cuda/gpu/report.h"
#include "tests/cuda/gpu/timing.h"

namespace penstock::cuda {

// Every op against its oracle; `small` for runs under a sanitizer.
void CheckCorrectness(bool small, Report& report);

// A lane's use of NCCL; `path` as dlopen takes it. Where the library is not, that is reported.
void CheckNccl(const char* path, Report& report);

// A sum over parts on several GPUs, as tensor parallelism has it; where there is one, that is
// reported.
void CheckExchange(const char* nccl, Report& report);

// The machine's limits: copy, read, bf16 GEMM, in GB/s and TFLOP/s. 0: cannot be measured here.
struct Ceilings {
  double copy = 0;  // bytes read and written
  double read = 0;
  double gemm = 0;
};
Ceilings MeasureCeilings(Report& report);
double ReadCeilingUs(const void* p, size_t bytes);
double GemmCeilingUs(int size);  // size^3, bf16; 0 where cuBLASLt does not do it

// Every op and shape that a goal names, or the part of them that `only` names; `save` is called
// after each part.
void MeasureSpeed(const std::string& only, Report& report, const std::function<void()>& save);

// Parts of it: attention over latents, products of experts, and what blends add.
void MeasureLatents(const Ceilings& ceilings, Report& report);
void MeasureExperts(const Ceilings& ceilings, Report& report);
void MeasureChoices(const Ceilings& ceilings, Report& report);
void MeasureBlends(const Ceilings& ceilings, Report& report);

// A decode step of an 8B model's shape, launch by launch and as a graph.
void MeasureStep(double ceiling, Report& report);
// True when the graph of a tiny shape gives the same as its launches, in repeated runs.
bool StepIsTheSameAsAGraph();

}  // namespace penstock::cuda
