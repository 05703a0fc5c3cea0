#pragma once

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace penstock {

// Counts what a client sends that moves none of its requests on: pings, settings, priorities,
// window updates for what nobody sent, resets, and streams that it makes us reset. Libraries send
// some of each; floods of them are how HTTP/2 servers have been worn down (CVE-2019-9511 to 9518,
// CVE-2023-44487, CVE-2025-8671). What is bounded elsewhere is not counted: requests, by their
// limit, and bodies. One thread at a time.
class Http2Guard {
 public:
  enum class Verdict {
    kFine,
    kEnough,   // No more streams: what a proxy has open for others on the connection may end.
    kTooMuch,  // It goes on nevertheless.
  };

  explicit Http2Guard(TimePoint now) : counted_(now) {}

  Verdict OnFrame(uint8_t type, TimePoint now) {
    switch (type) {
      case NGHTTP2_DATA:
        return Verdict::kFine;
      case NGHTTP2_HEADERS:  // Streams that are no longer taken are not refused one by one.
        return enough_ ? Count(now) : Verdict::kFine;
      case NGHTTP2_SETTINGS:
        return Count(now, kSettings);
      default:
        return Count(now);
    }
  }
  Verdict OnEmptyData(TimePoint now) { return Count(now); }
  Verdict OnResetSent(TimePoint now) { return Count(now); }
  // Clients may update two windows for it.
  void OnDataSent() { debt_ = std::max(debt_ - 2, 0.0); }

 private:
  Verdict Count(TimePoint now, double cost = 1) {
    const double passed_s = std::chrono::duration<double>(now - counted_).count();
    counted_ = now;
    debt_ = std::max(debt_ - passed_s * kFreePerS, 0.0) + cost;
    if (debt_ <= kEnough) return Verdict::kFine;
    enough_ = true;
    return debt_ <= kTooMuch ? Verdict::kEnough : Verdict::kTooMuch;
  }

  // A client library that ends may cancel a thousand requests at once, and open as many again.
  static constexpr double kEnough = 4000;
  static constexpr double kTooMuch = 8000;
  static constexpr double kFreePerS = 200;
  static constexpr double kSettings = 20;  // each may change the windows of all streams
  TimePoint counted_;
  double debt_ = 0;
  bool enough_ = false;  // has been said
};

}  // namespace penstock
