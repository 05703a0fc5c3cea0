#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace penstock {

// This room, base/net, accepts connections and reads and writes them. It knows neither TLS nor any
// protocol.

// Interface: a connected, non-blocking byte stream, plain or over TLS. Owns its descriptor. One
// thread at a time.
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
  // True if the last blocked read waits for the socket to become writable, or the last blocked
  // write for it to become readable: TLS may have to write before it can read, and the reverse.
  virtual bool read_waits_for_write() const { return false; }
  virtual bool write_waits_for_read() const { return false; }
  // True if bytes of the application protocol can pass; over TLS, after the handshake.
  virtual bool established() const { return true; }
  // Returns 32 bytes that only the two ends of this connection know, the same at both, for each
  // `label` others (RFC 8446, section 7.5). Empty over a plain connection. Only once established.
  virtual std::string ExportSecret(const std::string& /*label*/) const { return {}; }
  // Why the last operation was kBroken, for logs.
  virtual std::string trouble() const { return "the connection broke"; }
  // Tells the peer that no more bytes follow.
  virtual void FinishWriting() = 0;
  virtual int fd() const = 0;
};

// Takes ownership of `fd`.
std::unique_ptr<Socket> MakePlainSocket(int fd);

}  // namespace penstock
