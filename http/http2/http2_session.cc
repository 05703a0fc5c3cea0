#include "http/http2/http2_session.h"

#include <fmt/format.h>

#include <array>

#include "base/check.h"

namespace penstock {
namespace {

// Limits of libnghttp2's own flood protection. Http2FloodDetector reaches its limit for resets
// earlier.
constexpr uint64_t kMaxResets = 10'000;
constexpr uint64_t kResetsPerS = 200;
constexpr size_t kMaxAcks = 200;  // queued acknowledgements
constexpr size_t kMaxContinuations = 8;
constexpr size_t kFrameHeadBytes = 9;
constexpr size_t kClientTableBytes = 4 << 10;  // HPACK table in each direction

using Owned = std::unique_ptr<nghttp2_option, decltype(&nghttp2_option_del)>;

Owned MakeOptions() {
  nghttp2_option* option = nullptr;
  PENSTOCK_CHECK_EQ(nghttp2_option_new(&option), 0);
  nghttp2_option_set_no_auto_window_update(option, 1);
  nghttp2_option_set_no_closed_streams(option, 1);
  nghttp2_option_set_max_deflate_dynamic_table_size(option, kClientTableBytes);
  nghttp2_option_set_max_outbound_ack(option, kMaxAcks);
  nghttp2_option_set_max_continuations(option, kMaxContinuations);
  nghttp2_option_set_stream_reset_rate_limit(option, kMaxResets, kResetsPerS);
  return {option, &nghttp2_option_del};
}

std::string_view View(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

nghttp2_nv Field(std::string_view name, std::string_view value) {
  const auto bytes = [](std::string_view text) {
    // The cast is safe: nghttp2 only reads the text.
    return const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

// True for headers of HTTP/1.1 connections, which are malformed in HTTP/2 (RFC 9113, section
// 8.2.2).
bool IsOfConnection(std::string_view name) {
  return name == "connection" || name == "keep-alive" || name == "transfer-encoding" ||
         name == "upgrade" || name == "proxy-connection";
}

}  // namespace

// The callbacks that nghttp2 calls.
struct Http2Session::Callbacks {
  static Http2Session& Self(void* user) { return *static_cast<Http2Session*>(user); }

  static int OnBeginFrame(nghttp2_session*, const nghttp2_frame_hd* head, void* user) {
    Self(user).events_.OnFrameBegin(head->type);
    return 0;
  }

  static int OnBeginHeaders(nghttp2_session* session, const nghttp2_frame* frame, void* user) {
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;  // trailers
    if (Self(user).events_.OnStream(frame->hd.stream_id)) return 0;
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                              NGHTTP2_REFUSED_STREAM);
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }

  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                      void* user) {
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    const bool more = Self(user).events_.OnHeader(frame->hd.stream_id, View(name, name_size),
                                                  View(value, value_size));
    return more ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }

  // nghttp2 would otherwise drop the field silently, unless it is a pseudo-header.
  static int OnInvalidHeader(nghttp2_session* session, const nghttp2_frame* frame, const uint8_t*,
                             size_t, const uint8_t*, size_t, uint8_t, void*) {
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                              NGHTTP2_PROTOCOL_ERROR);
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }

  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Http2Session& self = Self(user);
    const int32_t stream = frame->hd.stream_id;
    const bool ends = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    switch (frame->hd.type) {
      case NGHTTP2_HEADERS:
        if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) self.events_.OnHead(stream);
        if (ends) self.events_.OnRequestEnd(stream);
        break;
      case NGHTTP2_DATA:
        if (ends) {
          self.events_.OnRequestEnd(stream);
        } else if (frame->hd.length == frame->data.padlen) {
          self.events_.OnEmptyData();
        }
        break;
      case NGHTTP2_SETTINGS:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) self.established_ = true;
        break;
      case NGHTTP2_PING:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0) self.events_.OnPong();
        break;
      default:
        break;
    }
    return 0;
  }

  static int OnData(nghttp2_session*, uint8_t, int32_t stream, const uint8_t* data, size_t size,
                    void* user) {
    Self(user).events_.OnData(stream, View(data, size));
    return 0;
  }

  static int OnFrameSent(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Http2Session& self = Self(user);
    const int32_t stream = frame->hd.stream_id;
    const bool of_answer = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
    if (frame->hd.type == NGHTTP2_DATA) self.events_.OnDataSent(stream);
    if (frame->hd.type == NGHTTP2_RST_STREAM) {
      self.events_.OnResetSent(frame->rst_stream.error_code);
    }
    if (frame->hd.type == NGHTTP2_GOAWAY) self.events_.OnGoawaySent(frame->goaway.error_code);
    if (of_answer && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
      self.events_.OnAnswered(stream);
    }
    return 0;
  }

  // Handles e.g. a head that is too large to send; without this its stream would never end.
  static int OnFrameNotSent(nghttp2_session* session, const nghttp2_frame* frame, int error,
                            void*) {
    const bool is_gone = error == NGHTTP2_ERR_STREAM_CLOSED ||
                         error == NGHTTP2_ERR_STREAM_CLOSING ||
                         error == NGHTTP2_ERR_SESSION_CLOSING;
    if (frame->hd.type == NGHTTP2_HEADERS && !is_gone) {
      nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                NGHTTP2_INTERNAL_ERROR);
    }
    return 0;
  }

  static int OnStreamClosed(nghttp2_session*, int32_t stream, uint32_t, void* user) {
    Self(user).events_.OnStreamClosed(stream);
    return 0;
  }

  static ssize_t ReadData(nghttp2_session* session, int32_t stream, uint8_t*, size_t max,
                          uint32_t* flags, nghttp2_data_source*, void* user) {
    Http2Session& self = Self(user);
    Http2Answer* answer = self.events_.AnswerOf(stream);
    if (answer == nullptr) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    const Http2Answer::Part part = answer->Next(max);
    if (part.then == BodySource::State::kBroken) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (part.then == BodySource::State::kMore && part.bytes == 0) {
      self.events_.OnAnswerWaits(stream);
      return NGHTTP2_ERR_DEFERRED;
    }
    *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    if (part.then == BodySource::State::kEnd) {
      *flags |= NGHTTP2_DATA_FLAG_EOF;
      const std::vector<HttpHeader> trailers = answer->TakeTrailers();
      self.fields_.clear();
      self.AppendFields(trailers);
      if (!self.fields_.empty()) {
        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        nghttp2_submit_trailer(session, stream, self.fields_.data(), self.fields_.size());
      }
    }
    return static_cast<ssize_t>(part.bytes);
  }

  static int SendData(nghttp2_session*, nghttp2_frame* frame, const uint8_t* head, size_t length,
                      nghttp2_data_source*, void* user) {
    Http2Session& self = Self(user);
    Http2Answer* answer = self.events_.AnswerOf(frame->hd.stream_id);
    if (answer == nullptr) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    self.out_->append(reinterpret_cast<const char*>(head), kFrameHeadBytes);
    answer->AppendTo(*self.out_, length);
    // The frame counts as sent; the remaining frames wait for the next Produce.
    return self.out_->size() < self.max_ ? 0 : NGHTTP2_ERR_PAUSE;
  }

  using Owned =
      std::unique_ptr<nghttp2_session_callbacks, decltype(&nghttp2_session_callbacks_del)>;
  static Owned Make() {
    nghttp2_session_callbacks* made = nullptr;
    PENSTOCK_CHECK_EQ(nghttp2_session_callbacks_new(&made), 0);
    nghttp2_session_callbacks_set_on_begin_frame_callback(made, OnBeginFrame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(made, OnBeginHeaders);
    nghttp2_session_callbacks_set_on_header_callback(made, OnHeader);
    nghttp2_session_callbacks_set_on_invalid_header_callback(made, OnInvalidHeader);
    nghttp2_session_callbacks_set_on_frame_recv_callback(made, OnFrame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(made, OnData);
    nghttp2_session_callbacks_set_on_frame_send_callback(made, OnFrameSent);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(made, OnFrameNotSent);
    nghttp2_session_callbacks_set_on_stream_close_callback(made, OnStreamClosed);
    nghttp2_session_callbacks_set_send_data_callback(made, SendData);
    return {made, &nghttp2_session_callbacks_del};
  }
};

Http2Session::Http2Session(Events& events, const HttpLimits& limits, const Http2Limits& http2)
    : events_(events) {
  const Callbacks::Owned callbacks = Callbacks::Make();
  const Owned options = MakeOptions();
  PENSTOCK_CHECK_EQ(nghttp2_session_server_new2(&session_, callbacks.get(), this, options.get()),
                    0);
  SubmitSettings(limits, http2);
}

Http2Session::~Http2Session() { nghttp2_session_del(session_); }

void Http2Session::SubmitSettings(const HttpLimits& limits, const Http2Limits& http2) {
  const std::array<nghttp2_settings_entry, 4> settings{{
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, http2.streams},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, http2.stream_window_bytes},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<uint32_t>(limits.head_bytes)},
      // A tree of RFC 7540 priorities costs memory that clients choose; requests of a connection
      // are served in turn instead.
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
  }};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0,
                                        static_cast<int32_t>(http2.connection_window_bytes));
}

uint32_t Http2Session::Take(std::string_view bytes) {
  const ssize_t taken = nghttp2_session_mem_recv(
      session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (taken >= 0) return NGHTTP2_NO_ERROR;
  const bool flooded = taken == NGHTTP2_ERR_FLOODED || taken == NGHTTP2_ERR_TOO_MANY_CONTINUATIONS;
  return flooded ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_PROTOCOL_ERROR;
}

bool Http2Session::Produce(std::string& out, size_t max) {
  out_ = &out;
  max_ = max;
  ssize_t size = 1;
  while (size > 0 && out.size() < max) {
    const uint8_t* bytes = nullptr;
    size = nghttp2_session_mem_send(session_, &bytes);
    if (size > 0) out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  }
  out_ = nullptr;
  return size >= 0;
}

void Http2Session::Continue(int32_t stream) {
  const nghttp2_nv status = Field(":status", "100");
  nghttp2_submit_headers(session_, NGHTTP2_FLAG_NONE, stream, nullptr, &status, 1, nullptr);
}

void Http2Session::AppendFields(const std::vector<HttpHeader>& headers) {
  for (const HttpHeader& header : headers) {
    if (!IsOfConnection(header.name)) fields_.push_back(Field(header.name, header.value));
  }
}

void Http2Session::Respond(int32_t stream, const HttpResponse& head, bool body) {
  const std::string status = fmt::format("{}", head.status);
  const std::string length = fmt::format("{}", head.body.size());
  fields_.clear();
  fields_.push_back(Field(":status", status));
  AppendFields(head.headers);
  if (!head.body.empty()) fields_.push_back(Field("content-length", length));
  const nghttp2_data_provider provider{.source = {}, .read_callback = &Callbacks::ReadData};
  nghttp2_submit_response(session_, stream, fields_.data(), fields_.size(),
                          body ? &provider : nullptr);
  // Round-robin with the other streams, for any priority that the client sets.
  const nghttp2_extpri in_turn{.urgency = NGHTTP2_EXTPRI_DEFAULT_URGENCY, .inc = 1};
  nghttp2_session_change_extpri_stream_priority(session_, stream, &in_turn, 1);
}

void Http2Session::Resume(int32_t stream) { nghttp2_session_resume_data(session_, stream); }

void Http2Session::Reset(int32_t stream, uint32_t error) {
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream, error);
}

void Http2Session::Consume(int32_t stream, size_t bytes) {
  nghttp2_session_consume(session_, stream, bytes);
}

bool Http2Session::IsHeldBack(int32_t stream) const {
  return nghttp2_session_get_remote_window_size(session_) <= 0 ||
         nghttp2_session_get_stream_remote_window_size(session_, stream) <= 0;
}

void Http2Session::Ping() { nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr); }

void Http2Session::AnnounceEnd() { nghttp2_submit_shutdown_notice(session_); }

void Http2Session::RefuseStreams(uint32_t error) {
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE,
                        nghttp2_session_get_last_proc_stream_id(session_), error, nullptr, 0);
}

void Http2Session::Terminate(uint32_t error) { nghttp2_session_terminate_session(session_, error); }

}  // namespace penstock
