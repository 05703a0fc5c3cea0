#include "tests/sim/simulation.h"

#include <fmt/format.h>

#include <utility>

namespace penstock::sim {
namespace {

constexpr size_t kHistory = 50;

}  // namespace

Simulation::Simulation(uint64_t seed) : seed_(seed), state_(seed) { clock_.Advance(Duration(1)); }

uint64_t Simulation::Random() {  // SplitMix64
  uint64_t x = state_ += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

Duration Simulation::Between(Duration min, Duration max) {
  return min + Duration(Below(static_cast<uint64_t>((max - min).count()) + 1));
}

void Simulation::After(Duration delay, std::function<void()> event) {
  events_.emplace(now() + delay, std::move(event));
}

bool Simulation::Step(TimePoint end) {
  if (events_.empty() || events_.begin()->first > end) return false;
  auto next = events_.extract(events_.begin());
  clock_.Advance(next.key() - now());
  next.mapped()();
  return true;
}

void Simulation::Note(std::string line) {
  history_.push_back(fmt::format("{:9.3f} ms  {}", Milliseconds(now().time_since_epoch()), line));
  for (const char c : history_.back()) history_hash_ = (history_hash_ ^ c) * 0x100000001b3u;
  if (history_.size() > kHistory) history_.pop_front();
}

void Simulation::Fail(const std::string& what) {
  if (!failed()) failure_ = what;
}

std::string Simulation::Report() const {
  std::string report = fmt::format("seed {} (run it alone with PENSTOCK_SIM_SEED={}): {}\n", seed_,
                                   seed_, failed() ? failure_ : "aborted");
  for (const std::string& line : history_) report += line + "\n";
  return report;
}

}  // namespace penstock::sim
