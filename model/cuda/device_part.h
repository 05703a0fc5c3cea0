#pragma once

#include <cstdint>
#include <functional>

namespace penstock {

// The part of a host matrix that is uploaded. Rows and inputs that the host lacks are zeros.
struct DevicePart {
  int64_t outputs = 0;
  std::function<int64_t(int64_t)> row_of;  // the host's row for a row of this part; -1: none
  int64_t first_input = 0;
  int64_t inputs = 0;
};

}  // namespace penstock
