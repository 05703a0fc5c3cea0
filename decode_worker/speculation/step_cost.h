#pragma once

#include <cstdint>

namespace penstock {

// The time of a step by its number of rows: a line through the recent steps. While all of them had
// equally many rows, its slope is that of a machine on which the compute of kKneeRows rows takes as
// long as reading the weights. One thread.
class StepCost {
 public:
  static constexpr double kKneeRows = 16;

  void Add(int64_t rows, double seconds);
  double Seconds(int64_t rows) const;
  double SecondsPerRow() const;
  bool known() const { return weight_ > 0; }  // false: no step yet, and the times mean nothing

 private:
  double weight_ = 0;  // of the steps so far; each step's decays
  double rows_ = 1;    // means
  double seconds_ = 1;
  double rows_rows_ = 0;  // sums of products of deviations
  double rows_seconds_ = 0;
};

}  // namespace penstock
