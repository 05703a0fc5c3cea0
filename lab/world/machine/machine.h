#pragma once

#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace penstock::world {

// The time of day at the scheduler's time 0.
inline constexpr Duration kWallEpoch = std::chrono::hours(24 * 365 * 50);

// From now on, the code under test draws its random numbers from this seed.
void SeedEntropy(uint64_t seed);
uint64_t Entropy();
// The time of day, as the running process sees it.
std::chrono::system_clock::time_point WallTime();

}  // namespace penstock::world
