#pragma once

#include <cmath>
#include <cstdint>

namespace penstock::cuda {

// How far an answer is from a double-precision oracle on the same stored values.
struct Deviation {
  double relative = 0;  // root of the mean square, of the oracle's
  double worst = 0;     // of one element, of the oracle's root mean square
};

// Adds up the errors of an answer's elements.
class DeviationSums {
 public:
  void Add(double got, double want) {
    error_ += (got - want) * (got - want);
    reference_ += want * want;
    // NaN is the worst of all.
    if (!(std::fabs(got - want) <= worst_)) worst_ = std::fabs(got - want);
    ++count_;
  }
  Deviation Result() const {
    const double size = std::sqrt(reference_ / static_cast<double>(count_));
    return {.relative = std::sqrt(error_ / reference_),
            .worst = std::isnan(error_) ? error_ : worst_ / size};
  }

 private:
  double error_ = 0, reference_ = 0, worst_ = 0;
  int64_t count_ = 0;
};

}  // namespace penstock::cuda
