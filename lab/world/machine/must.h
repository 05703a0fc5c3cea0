#pragma once

#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace penstock::world {

// The value; a status that is not OK is printed and ends the world.
template <class T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) std::fprintf(stderr, "%s\n", Message(value.status()).c_str());
  PENSTOCK_CHECK(value.ok());
  return *std::move(value);
}

}  // namespace penstock::world
