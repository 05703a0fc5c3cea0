#pragma once

#include <sys/socket.h>

#include <functional>

namespace penstock {

// Accepts connections while one descriptor is kept in reserve. If the process has no other free
// descriptor, the reserve is used to accept and refuse the waiting connections one by one.
// Otherwise a listening socket would stay readable: its owner would spin, and its clients would
// wait. Works for any number of listening sockets. One thread at a time.
class ReservedAcceptor {
 public:
  struct Step {
    enum class Kind {
      kAccepted,
      kRefused,    // no descriptor was free: one connection was refused
      kNothing,    // no connection waits, or the first of them is gone
      kExhausted,  // not even the reserve is free: do not poll before Restore succeeds
    };
    Kind kind = Kind::kNothing;
    int connection = -1;      // of kAccepted, and the caller's; non-blocking and close-on-exec
    sockaddr_storage peer{};  // of kAccepted
  };

  // `refuse` owns the connection that it is called with, and closes it before it returns.
  explicit ReservedAcceptor(std::function<void(int connection)> refuse);
  ~ReservedAcceptor();
  ReservedAcceptor(const ReservedAcceptor&) = delete;
  ReservedAcceptor& operator=(const ReservedAcceptor&) = delete;

  // Takes one connection of `listener`, a non-blocking socket.
  Step Accept(int listener);
  // Returns true if the reserve is open; opens it if necessary.
  bool Restore();

 private:
  bool RefuseOne(int listener);

  const std::function<void(int)> refuse_;
  int reserve_ = -1;
};

}  // namespace penstock
