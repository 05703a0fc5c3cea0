#pragma once

#include <memory>
#include <span>
#include <string_view>

namespace penstock {

// A connected, non-blocking stream of bytes, in the clear or under TLS. One thread at a time.
class Socket {
 public:
  struct Result {
    enum class Kind {
      kBytes,
      kWouldBlock,
      kEnd,  // the peer sends no more
      kBroken,
    };
    Kind kind = Kind::kBroken;
    size_t bytes = 0;
  };

  virtual ~Socket() = default;
  virtual Result Read(std::span<char> into) = 0;
  virtual Result Write(std::string_view bytes) = 0;
  // What the last operation that would block waits for, where that is not the obvious: TLS may have
  // to write before it can read, and the other way round.
  virtual bool read_waits_for_write() const { return false; }
  virtual bool write_waits_for_read() const { return false; }
  // Bytes of the protocol above can pass; TLS has its handshake first.
  virtual bool established() const { return true; }
  // Says that no more is sent.
  virtual void FinishWriting() = 0;
  virtual int fd() const = 0;
};

// Takes `fd` over.
std::unique_ptr<Socket> MakePlainSocket(int fd);

}  // namespace penstock
