#pragma once

#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace penstock {

// The value; without one the process ends with the error.
template <class T>
T Must(absl::StatusOr<T> result) {
  if (!result.ok()) internal::CheckFailed(__FILE__, __LINE__, Message(result.status()));
  return *std::move(result);
}

}  // namespace penstock
