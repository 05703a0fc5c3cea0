#pragma once

#include <vector>

#include "base/program/program.h"

namespace penstock {

// `penstock` and the product's servers, for completion and man pages.
std::vector<Program> ProductPrograms(Program penstock);

}  // namespace penstock
