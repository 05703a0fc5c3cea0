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
class Http2FloodDetector {
 public:
  enum class Verdict {
    kOk,
    kRefuseStreams,    // Refuse new streams; open ones, e.g. a proxy's other requests, may finish.
    kCloseConnection,  // Close the connection: the client continues nevertheless.
  };

  explicit Http2FloodDetector(TimePoint now) : counted_(now) {}

  Verdict OnFrame(uint8_t type, TimePoint now) {
    switch (type) {
      case NGHTTP2_DATA:
        return Verdict::kOk;
      // After the GOAWAY, new streams are ignored instead of reset, so they are counted here.
      case NGHTTP2_HEADERS:
        return refusing_ ? Count(now) : Verdict::kOk;
      case NGHTTP2_SETTINGS:
        return Count(now, kSettings);
      default:
        return Count(now);
    }
  }
  Verdict OnEmptyData(TimePoint now) { return Count(now); }
  Verdict OnResetSent(TimePoint now) { return Count(now); }
  // A client may send two window updates for each DATA frame.
  void OnDataSent() { level_ = std::max(level_ - 2, 0.0); }

 private:
  Verdict Count(TimePoint now, double cost = 1) {
    const double passed_s = std::chrono::duration<double>(now - counted_).count();
    counted_ = now;
    level_ = std::max(level_ - passed_s * kDrainPerS, 0.0) + cost;
    if (level_ <= kRefuseAbove) return Verdict::kOk;
    refusing_ = true;
    return level_ <= kCloseAbove ? Verdict::kRefuseStreams : Verdict::kCloseConnection;
  }

  // A client library that shuts down may cancel a thousand requests at once and open as many again.
  static constexpr double kRefuseAbove = 4000;
  static constexpr double kCloseAbove = 8000;
  static constexpr double kDrainPerS = 200;
  static constexpr double kSettings = 20;  // each may change the windows of all streams
  TimePoint counted_;
  double level_ = 0;
  bool refusing_ = false;  // kRefuseStreams has been reported
};

}  // namespace penstock
