#pragma once

#include "tests/cuda/gpu/report.h"

namespace penstock::cuda {

// The lanes' use of another process's GPU memory, and its speed unless `small`. Where it cannot be
// mapped, that is reported.
void CheckExports(bool small, Report& report);

// The other process of CheckExports.
int RunExporter();

}  // namespace penstock::cuda
