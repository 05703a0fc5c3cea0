#pragma once

#include <string>
#include <vector>

namespace penstock::cuda {

struct Check {
  std::string name;
  double value = 0;
  double limit = 0;  // passes below it; NaN never does
  bool passed() const { return value < limit; }
};

struct Measurement {
  std::string name;
  double median_us = 0;
  double rate = 0;  // GB/s or TFLOP/s
  std::string unit;
  double ceiling = 0;  // measured in the same run, in the same unit; 0: none
  double goal = 0;     // fraction of the ceiling; 0: none
};

struct Report {
  std::string device;
  std::vector<Check> checks;
  std::vector<Measurement> measurements;
  std::vector<std::string> not_run;  // and why

  bool passed() const;
  std::string Json() const;
  void PrintTable() const;
};

}  // namespace penstock::cuda
