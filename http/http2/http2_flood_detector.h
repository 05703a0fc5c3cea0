#pragma once

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace penstock {

// Detects floods: counts frames that do not advance a request, with a leaky bucket: pings,
// settings, priorities, window updates without sent data, resets, and streams that the client makes
// us reset. Libraries send some of each; floods of them have exhausted HTTP/2 servers
// (CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2025-8671). Requests and bodies are not counted: they
// have limits of their own. One thread at a time.
class Http2Guard {
 public:
  enum class Verdict {
    kFine,
    kEnough,   // Refuse new streams; open ones, e.g. a proxy's other requests, may finish.
    kTooMuch,  // Close the connection: the client continues nevertheless.
  };

  explicit Http2Guard(TimePoint now) : counted_(now) {}

  Verdict OnFrame(uint8_t type, TimePoint now) {
    switch (type) {
      case NGHTTP2_DATA:
        return Verdict::kFine;
      case NGHTTP2_HEADERS:  // Refused streams are not counted one by one before kEnough.
        return enough_ ? Count(now) : Verdict::kFine;
      case NGHTTP2_SETTINGS:
        return Count(now, kSettings);
      default:
        return Count(now);
    }
  }
  Verdict OnEmptyData(TimePoint now) { return Count(now); }
  Verdict OnResetSent(TimePoint now) { return Count(now); }
  // A client may send two window updates for each DATA frame.
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

  // A client library that shuts down may cancel a thousand requests at once and open as many again.
  static constexpr double kEnough = 4000;
  static constexpr double kTooMuch = 8000;
  static constexpr double kFreePerS = 200;
  static constexpr double kSettings = 20;  // each may change the windows of all streams
  TimePoint counted_;
  double debt_ = 0;
  bool enough_ = false;  // kEnough has been reported
};

}  // namespace penstock
