#include "tests/cuda/cases/sample_case.h"

#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda {

std::vector<SampledRow> RunSample(const std::vector<float>& logits, int32_t vocabulary,
                                  const std::vector<SampleRow>& rows) {
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<SampleRow> device_rows(rows);
  const DeviceArray<SampledRow> sampled(std::vector<SampledRow>(rows.size()));
  const auto draws = static_cast<int>(rows.size());
  const DeviceArray<std::byte> scratch(SampleScratchBytes(draws));
  Sample({.logits = device_logits.data(),
          .vocabulary = vocabulary,
          .draws = device_rows.data(),
          .sampled = sampled.data(),
          .scratch = scratch.data()},
         draws, nullptr);
  ExpectNoDeviceError("Sample");
  return sampled.Read();
}

}  // namespace penstock::cuda
