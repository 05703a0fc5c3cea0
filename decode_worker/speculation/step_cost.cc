#include "decode_worker/speculation/step_cost.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr double kForget = 63.0 / 64;
constexpr double kKneeWeight = 4;  // of the assumed slope, in rows squared
constexpr double kOutlier = 2;     // times the expected time; longer steps count as this
constexpr double kOutlierAfter = 8;

}  // namespace

// Weighted recursive least squares: West, "Updating mean and variance estimates" (CACM 1979), with
// weights that decay.
void StepCost::Add(int64_t rows, double seconds) {
  if (seconds <= 0) return;  // a clock that stands still
  if (weight_ > kOutlierAfter) seconds = std::min(seconds, kOutlier * Seconds(rows));
  const auto count = static_cast<double>(rows);
  if (weight_ == 0) {
    rows_ = count;
    seconds_ = seconds;
  }
  weight_ = weight_ * kForget + 1;
  const double away = count - rows_;
  rows_ += away / weight_;
  seconds_ += (seconds - seconds_) / weight_;
  rows_rows_ = rows_rows_ * kForget + away * (count - rows_);
  rows_seconds_ = rows_seconds_ * kForget + away * (seconds - seconds_);
}

double StepCost::SecondsPerRow() const {
  const double assumed = seconds_ / (kKneeRows + rows_);
  const double slope = (rows_seconds_ + kKneeWeight * assumed) / (rows_rows_ + kKneeWeight);
  return std::clamp(slope, 0.1 * assumed, seconds_ / rows_);
}

double StepCost::Seconds(int64_t rows) const {
  const double at = seconds_ + SecondsPerRow() * (static_cast<double>(rows) - rows_);
  return std::max(at, 0.1 * seconds_);
}

}  // namespace penstock
