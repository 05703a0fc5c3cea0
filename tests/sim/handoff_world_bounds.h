#pragma once

#include "kvstore/handoff/handoff_slabs.h"
#include "tests/sim/handoff_world.h"

// The sizes, times and bounds of a HandoffWorld.
namespace penstock::sim {

inline constexpr KvLayout kLayout{.layers = 4, .kv_heads = 1, .head_dim = 4, .block_tokens = 4};
inline constexpr HandoffFormat kFormat{.model_fingerprint = 7, .layout = kLayout};
inline constexpr HandoffTiming kTiming{.lease = std::chrono::milliseconds(300),
                                       .offer_hold = std::chrono::milliseconds(400)};
inline constexpr Duration kPutTimeout = std::chrono::milliseconds(900);
inline constexpr Duration kTick = std::chrono::milliseconds(20);
inline constexpr Duration kPauseMax = std::chrono::milliseconds(500);
inline constexpr Duration kLoadUntil = std::chrono::milliseconds(1500);
inline constexpr Duration kFaultsUntil = std::chrono::milliseconds(2500);
inline constexpr Duration kDeadlineMax = std::chrono::milliseconds(4000);
inline constexpr Duration kPatience =
    std::chrono::milliseconds(30000);  // where every request is served
// Cancelled, an attempt is over on both sides as soon as that has arrived; all pages are free when
// stuck Puts have been cut off, too.
inline constexpr Duration kEndBound = std::chrono::milliseconds(100);
inline constexpr Duration kEmptyBound = std::chrono::milliseconds(2500);
inline constexpr size_t kStaging = 8192;
inline constexpr size_t kWaitingMax = 6;

}  // namespace penstock::sim
