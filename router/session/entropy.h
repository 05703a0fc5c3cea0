#pragma once

#include <unistd.h>

#include <cstdint>

#include "base/check.h"

namespace penstock {

// A random number from the kernel's cryptographic source, for ids that must not be guessable. Any
// thread.
inline uint64_t RandomU64() {
  uint64_t value = 0;
  PENSTOCK_CHECK_EQ(getentropy(&value, sizeof value), 0);
  return value;
}

}  // namespace penstock
