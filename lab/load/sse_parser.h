#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace penstock {

// Server-sent events from bytes that come in any pieces, as the HTML standard reads them; only the
// data is kept. One thread.
class SseParser {
 public:
  using OnEvent = std::function<void(std::string_view data)>;
  static constexpr size_t kMaxEventBytes = 4 << 20;

  explicit SseParser(OnEvent on_event) : on_event_(std::move(on_event)) {}

  // False: an event is longer than kMaxEventBytes; nothing more is taken.
  bool Take(std::string_view bytes);

 private:
  void TakeLine(std::string_view line);

  const OnEvent on_event_;
  std::string line_;  // so far
  std::string data_;  // of the event so far
  bool any_data_ = false;
  bool after_cr_ = false;
  bool failed_ = false;
};

}  // namespace penstock
