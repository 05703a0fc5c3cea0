#pragma once

#include <functional>

namespace penstock::cuda {

// The median of some runs by the device's clock, after two that do not count.
double MedianUs(const std::function<void()>& enqueue, void* stream = nullptr, int runs = 20);

}  // namespace penstock::cuda
