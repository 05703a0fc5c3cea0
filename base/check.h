#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

// CHECKs for programming errors: they print both operands and abort. Errors of the outside world
// are an absl::Status instead.

namespace penstock::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line, const std::string& what) {
  std::fputs(fmt::format("{}:{}: CHECK failed: {}\n", file, line, what).c_str(), stderr);
  std::abort();
}

template <class T>
std::string Printable(const T& value) {
  if constexpr (fmt::is_formattable<T>::value) {
    return fmt::format("{}", value);
  } else {
    return "(unprintable)";
  }
}

}  // namespace penstock::internal

#define PENSTOCK_CHECK(condition, ...)                                                   \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      ::penstock::internal::CheckFailed(__FILE__, __LINE__, #condition " " __VA_ARGS__); \
    }                                                                                    \
  } while (false)

#define PENSTOCK_CHECK_OP(op, a, b)                                                             \
  do {                                                                                          \
    const auto& check_a = (a);                                                                  \
    const auto& check_b = (b);                                                                  \
    if (!(check_a op check_b)) [[unlikely]] {                                                   \
      ::penstock::internal::CheckFailed(__FILE__, __LINE__,                                     \
                                        fmt::format("{} {} {} ({} vs {})", #a, #op, #b,         \
                                                    ::penstock::internal::Printable(check_a),   \
                                                    ::penstock::internal::Printable(check_b))); \
    }                                                                                           \
  } while (false)

#define PENSTOCK_CHECK_EQ(a, b) PENSTOCK_CHECK_OP(==, a, b)
#define PENSTOCK_CHECK_NE(a, b) PENSTOCK_CHECK_OP(!=, a, b)
#define PENSTOCK_CHECK_LE(a, b) PENSTOCK_CHECK_OP(<=, a, b)
#define PENSTOCK_CHECK_LT(a, b) PENSTOCK_CHECK_OP(<, a, b)
#define PENSTOCK_CHECK_GE(a, b) PENSTOCK_CHECK_OP(>=, a, b)
#define PENSTOCK_CHECK_GT(a, b) PENSTOCK_CHECK_OP(>, a, b)
