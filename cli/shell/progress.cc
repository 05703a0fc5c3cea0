#include "cli/shell/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string_view>

namespace penstock {
namespace {

constexpr std::array<std::string_view, 10> kSpinner = {"⠋", "⠙", "⠹", "⠸", "⠼",
                                                       "⠴", "⠦", "⠧", "⠇", "⠏"};
constexpr auto kSpinnerStep = std::chrono::milliseconds(100);

}  // namespace

// NO_COLOR is the convention of no-color.org.
Progress::Progress()
    : terminal_(isatty(STDERR_FILENO) != 0),
      color_(terminal_ && std::getenv("NO_COLOR") == nullptr) {}  // NOLINT(concurrency-mt-unsafe)

Progress::~Progress() { Erase(); }

void Progress::Status(const std::string& text) {
  if (text == status_) return;
  Erase();
  status_ = text;
  since_ = std::chrono::steady_clock::now();
  if (!terminal_ && !text.empty()) fmt::print(stderr, "{} ...\n", text);
  Tick();
}

void Progress::Tick() {
  if (!terminal_ || status_.empty()) return;
  const auto elapsed = std::chrono::steady_clock::now() - since_;
  const std::string_view spinner = kSpinner[(elapsed / kSpinnerStep) % kSpinner.size()];
  fmt::print(stderr, "\r\033[K{} {} {:.1f} s", spinner, status_,
             std::chrono::duration<double>(elapsed).count());
}

void Progress::Line(const std::string& text) {
  Erase();
  fmt::print(stderr, "{}\n", text);
  Tick();
}

void Progress::Done(const std::string& text) {
  Line(color_ ? fmt::format("\033[32m✓\033[0m {}", text) : fmt::format("ok {}", text));
}

void Progress::Fail(const std::string& text) {
  Line(color_ ? fmt::format("\033[31m✗\033[0m {}", text) : fmt::format("failed: {}", text));
}

void Progress::Erase() const {
  if (terminal_ && !status_.empty()) fmt::print(stderr, "\r\033[K");
}

}  // namespace penstock
