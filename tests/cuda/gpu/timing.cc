#include "tests/cuda/gpu/timing.h"

#include <algorithm>
#include <vector>

#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda {

double MedianUs(const std::function<void()>& enqueue, void* stream, int runs) {
  void *begin = CreateEvent(), *end = CreateEvent();
  std::vector<double> times;
  for (int i = 0; i < runs + 2; ++i) {
    RecordEvent(begin, stream);
    enqueue();
    RecordEvent(end, stream);
    SynchronizeEvent(end);
    ExpectNoDeviceError("a measurement");
    if (i >= 2) times.push_back(1e3 * MillisecondsBetween(begin, end));
  }
  DestroyEvent(begin);
  DestroyEvent(end);
  std::ranges::nth_element(times, times.begin() + runs / 2);
  return times[runs / 2];
}

}  // namespace penstock::cuda
