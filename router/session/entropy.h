#pragma once

#include <unistd.h>

#include <cstdint>

#include "base/check.h"

namespace penstock {

// From the kernel's cryptographic source: for what nobody may guess. Any thread.
inline uint64_t RandomU64() {
  uint64_t value = 0;
  PENSTOCK_CHECK_EQ(getentropy(&value, sizeof value), 0);
  return value;
}

}  // namespace penstock
