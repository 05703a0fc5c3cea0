#include "tests/http/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/lifecycle.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using SteadyTime = std::chrono::steady_clock;

// Takes chunks from the front of `bytes` into `body`; true once the last one was there.
bool TakeChunks(std::string_view bytes, std::string& body, size_t& used) {
  used = 0;
  body.clear();
  while (true) {
    const size_t line_end = bytes.find("\r\n", used);
    if (line_end == std::string_view::npos) return false;
    const size_t size = std::stoul(std::string(bytes.substr(used, line_end - used)), nullptr, 16);
    if (bytes.size() < line_end + 2 + size + 2) return false;
    body += bytes.substr(line_end + 2, size);
    used = line_end + 2 + size + 2;
    if (size == 0) return true;
  }
}

void ReadHead(std::string_view head, HttpReply& reply) {
  reply.status = std::stoi(std::string(head.substr(9, 3)));
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    const size_t end = std::min(head.find("\r\n", at), head.size());
    const std::string_view line = head.substr(at, end - at);
    at = end + 2;
    const size_t colon = line.find(": ");
    if (colon == std::string_view::npos) continue;
    reply.headers[std::string(line.substr(0, colon))] = line.substr(colon + 2);
  }
}

}  // namespace

int ConnectTo(const std::string& endpoint, const std::string& from) {
  const auto address = ParseHostPort(endpoint);
  PENSTOCK_CHECK(address.ok(), "an endpoint is host:port");
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address->port);
  inet_pton(AF_INET, address->host.c_str(), &to.sin_addr);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  inet_pton(AF_INET, from.c_str(), &own.sin_addr);
  PENSTOCK_CHECK_EQ(bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof(own)), 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) return fd;
  close(fd);
  return -1;
}

HttpClient::HttpClient(const std::string& endpoint, const std::string& from)
    : fd_(ConnectTo(endpoint, from)), closed_(fd_ < 0) {}

HttpClient::~HttpClient() { close(fd_); }

bool HttpClient::Send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void HttpClient::FinishSending() const { shutdown(fd_, SHUT_WR); }

bool HttpClient::More(SteadyTime::time_point deadline) {
  if (closed_) return false;
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - SteadyTime::now()).count();
  pollfd ready{.fd = fd_, .events = POLLIN};
  if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) <= 0) return false;
  char bytes[64 << 10];
  const ssize_t count = recv(fd_, bytes, sizeof(bytes), 0);
  closed_ = count <= 0;
  if (!closed_) buffer_.append(bytes, static_cast<size_t>(count));
  return !closed_;
}

HttpReply HttpClient::Receive(milliseconds patience) {
  const auto deadline = SteadyTime::now() + patience;
  HttpReply reply;
  size_t head_end = 0;
  while ((head_end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!More(deadline)) return reply;
  }
  ReadHead(std::string_view(buffer_).substr(0, head_end), reply);
  buffer_.erase(0, head_end + 4);
  if (reply.status == 100) return Receive(patience);
  const bool chunked = reply.headers.contains("transfer-encoding");
  const bool sized = reply.headers.contains("content-length");
  const size_t size = sized ? std::stoul(reply.headers["content-length"]) : 0;
  size_t used = 0;
  while (true) {
    if (chunked) {
      reply.complete = TakeChunks(buffer_, reply.body, used);
    } else {
      used = std::min(sized ? size : buffer_.size(), buffer_.size());
      reply.complete = sized ? used == size : closed_;
    }
    if (reply.complete || !More(deadline)) break;
  }
  if (!chunked) reply.body = buffer_.substr(0, used);
  if (!chunked && !sized) reply.complete = closed_;
  buffer_.erase(0, used);
  return reply;
}

bool HttpClient::ReceiveUntil(const std::string& text, milliseconds patience) {
  const auto deadline = SteadyTime::now() + patience;
  while (buffer_.find(text) == std::string::npos) {
    if (!More(deadline)) return false;
  }
  return true;
}

bool HttpClient::Closes(milliseconds patience) {
  const auto deadline = SteadyTime::now() + patience;
  while (More(deadline)) buffer_.clear();
  return closed_;
}

std::string HttpText(const std::string& path, const std::string& body,
                     const std::string& more_headers) {
  if (body.empty()) {
    return fmt::format("GET {} HTTP/1.1\r\nHost: test\r\n{}\r\n", path, more_headers);
  }
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "{}\r\n{}",
      path, body.size(), more_headers, body);
}

HttpReply Ask(const std::string& endpoint, const std::string& path, const std::string& body,
              const std::string& more_headers) {
  HttpClient client(endpoint);
  client.Send(HttpText(path, body, more_headers));
  return client.Receive();
}

std::vector<std::string> EventsOf(const std::string& body) {
  std::vector<std::string> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos || !body.substr(at).starts_with("data: ")) {
      events.push_back("broken: " + body.substr(at));
      return events;
    }
    events.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return events;
}

}  // namespace penstock
