#pragma once

#include <string>
#include <string_view>

#include "tests/world/plan.h"
#include "tests/world/world.h"

namespace penstock::world {

// Runs a world in a child process, so that equal plans meet equal memory, a CHECK that fails is an
// outcome, and a world that does not end is killed.
Outcome RunInChild(const Plan& plan);

// A world in a child process that runs now.
class Child {
 public:
  explicit Child(const Plan& plan);
  Outcome Wait();  // once

 private:
  int pipe_ = -1;
  int process_id_ = 0;
};

// The fewest events of the plan that still fail: delta debugging (Zeller and Hildebrandt, 2002).
Plan Shrink(const Plan& plan);

// A text that says what failed and how to run it again; with `shrink`, also the fewest events that
// still fail.
std::string ReportOf(const Plan& plan, const Outcome& outcome, bool shrink);
std::string Summary(const Totals& totals);
// A metric of kCounted.
double CountOf(const Totals& totals, std::string_view metric);

}  // namespace penstock::world
