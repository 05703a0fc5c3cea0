#include "tests/http/http2_client.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/http/http_client.h"

namespace penstock {
namespace {

std::string Text(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

nghttp2_nv Field(const HttpHeader& header) {
  const auto bytes = [](const std::string& text) {
    return const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(text.data()));
  };
  return {bytes(header.name), bytes(header.value), header.name.size(), header.value.size(),
          NGHTTP2_NV_FLAG_NONE};
}

}  // namespace

struct Http2Client::Callbacks {
  static Http2Client& Self(void* user) { return *static_cast<Http2Client*>(user); }

  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                      void* user) {
    Http2Reply& reply = Self(user).replies_[frame->hd.stream_id];
    const std::string key = Text(name, name_size);
    const std::string text = Text(value, value_size);
    if (key == ":status") {
      reply.status = std::stoi(text);
    } else if (frame->headers.cat == NGHTTP2_HCAT_HEADERS && reply.status >= 200) {
      reply.trailers[key] = text;
    } else {
      reply.headers[key] = text;
    }
    return 0;
  }

  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Http2Client& self = Self(user);
    const bool of_stream = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
    if (of_stream && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
      self.replies_[frame->hd.stream_id].complete = true;
    }
    if (frame->hd.type == NGHTTP2_RST_STREAM) {
      self.replies_[frame->hd.stream_id].reset = frame->rst_stream.error_code;
    }
    if (frame->hd.type == NGHTTP2_GOAWAY) {
      self.goaways_.push_back({frame->goaway.error_code, frame->goaway.last_stream_id});
    }
    return 0;
  }

  static int OnData(nghttp2_session*, uint8_t, int32_t stream, const uint8_t* data, size_t size,
                    void* user) {
    Self(user).replies_[stream].body.append(reinterpret_cast<const char*>(data), size);
    return 0;
  }

  static ssize_t ReadBody(nghttp2_session*, int32_t stream, uint8_t* buffer, size_t max,
                          uint32_t* flags, nghttp2_data_source*, void* user) {
    Body& body = Self(user).bodies_[stream];
    const size_t size = std::min(max, body.bytes.size() - body.sent);
    std::memcpy(buffer, body.bytes.data() + body.sent, size);
    body.sent += size;
    const bool all = body.sent == body.bytes.size();
    if (all && body.end) *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (size == 0 && !body.end) return NGHTTP2_ERR_DEFERRED;
    return static_cast<ssize_t>(size);
  }
};

Http2Client::Http2Client(const std::string& endpoint, Options options) : fd_(ConnectTo(endpoint)) {
  const int one = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_session_callbacks_new(&callbacks);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, Callbacks::OnHeader);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Callbacks::OnFrame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Callbacks::OnData);
  nghttp2_option* option = nullptr;
  nghttp2_option_new(&option);
  if (!options.updates) nghttp2_option_set_no_auto_window_update(option, 1);
  nghttp2_session_client_new2(&session_, callbacks, this, option);
  nghttp2_session_callbacks_del(callbacks);
  nghttp2_option_del(option);
  const std::array<nghttp2_settings_entry, 1> settings{
      {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, options.window_bytes}}};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  Flush();
}

Http2Client::~Http2Client() {
  nghttp2_session_del(session_);
  close(fd_);
}

int32_t Http2Client::Send(const std::string& method, const std::string& path,
                          std::optional<std::string> body, std::vector<HttpHeader> more) {
  std::vector<HttpHeader> fields{
      {":method", method}, {":scheme", "http"}, {":path", path}, {":authority", "test"}};
  fields.insert(fields.end(), more.begin(), more.end());
  const int32_t stream = SendFields(fields);
  if (body) SendBody(stream, *std::move(body), /*end=*/true);
  return stream;
}

int32_t Http2Client::SendFields(const std::vector<HttpHeader>& fields) {
  std::vector<nghttp2_nv> list;
  for (const HttpHeader& field : fields) list.push_back(Field(field));
  const nghttp2_data_provider provider{.source = {}, .read_callback = &Callbacks::ReadBody};
  return nghttp2_submit_request(session_, nullptr, list.data(), list.size(), &provider, nullptr);
}

void Http2Client::SendBody(int32_t stream, std::string bytes, bool end) {
  Body& body = bodies_[stream];
  body.bytes += bytes;
  body.end = end;
  nghttp2_session_resume_data(session_, stream);
  Flush();
}

void Http2Client::Reset(int32_t stream, uint32_t error) {
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream, error);
  Flush();
}

void Http2Client::Update(int32_t stream, size_t bytes) {
  nghttp2_session_consume(session_, stream, bytes);
  Flush();
}

void Http2Client::Flush() {
  while (!closed_) {
    const uint8_t* bytes = nullptr;
    const ssize_t size = nghttp2_session_mem_send(session_, &bytes);
    if (size <= 0) return;
    for (ssize_t sent = 0; sent < size;) {
      const ssize_t count = send(fd_, bytes + sent, static_cast<size_t>(size - sent), MSG_NOSIGNAL);
      if (count < 0) {
        closed_ = true;
        return;
      }
      sent += count;
    }
  }
}

void Http2Client::Turn(std::chrono::milliseconds patience) {
  Flush();
  pollfd poll_for{.fd = fd_, .events = POLLIN, .revents = 0};
  if (closed_ || poll(&poll_for, 1, static_cast<int>(patience.count())) <= 0) return;
  std::array<uint8_t, 65536> buffer;
  const ssize_t size = recv(fd_, buffer.data(), buffer.size(), 0);
  if (size <= 0) {
    closed_ = true;
    return;
  }
  EXPECT_GE(nghttp2_session_mem_recv(session_, buffer.data(), static_cast<size_t>(size)), 0)
      << "the server is not to send what nghttp2 does not understand";
  Flush();
}

bool Http2Client::WaitUntil(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (closed_ || std::chrono::steady_clock::now() > deadline) return false;
    Turn(std::chrono::milliseconds(10));
  }
  return true;
}

const Http2Reply& Http2Client::Await(int32_t stream) {
  Http2Reply& awaited = replies_[stream];
  WaitUntil([&] { return awaited.complete || awaited.reset; });
  return awaited;
}

const Http2Reply& Http2Client::Ask(const std::string& path, const std::string& body) {
  return Await(Send(body.empty() ? "GET" : "POST", path, body));
}

}  // namespace penstock
