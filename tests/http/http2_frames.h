#pragma once

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

// HTTP/2's bytes by hand, for what no client library sends (RFC 9113, 4.1; RFC 7541).
namespace penstock::http2 {

inline std::string Number(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return text;
}

inline std::string Frame(uint8_t type, int flags, int32_t stream, std::string_view payload = "") {
  return Number(static_cast<uint32_t>(payload.size()), 3) + Number(type, 1) +
         Number(static_cast<uint32_t>(flags), 1) + Number(static_cast<uint32_t>(stream), 4) +
         std::string(payload);
}

inline std::string Setting(uint16_t id, uint32_t value) { return Number(id, 2) + Number(value, 4); }

// The first bytes of a client.
inline std::string Preface(std::string_view settings = "") {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(NGHTTP2_SETTINGS, 0, 0, settings);
}

// A string of header compression, without Huffman coding.
inline std::string Text(std::string_view text) {
  std::string bytes;
  if (text.size() < 127) {
    bytes = Number(static_cast<uint32_t>(text.size()), 1);
  } else {
    bytes = "\x7f";
    size_t rest = text.size() - 127;
    for (; rest >= 128; rest /= 128) bytes.push_back(static_cast<char>(rest % 128 + 128));
    bytes.push_back(static_cast<char>(rest));
  }
  return bytes + std::string(text);
}

// A field that enters no table.
inline std::string Field(std::string_view name, std::string_view value) {
  return std::string(1, '\0') + Text(name) + Text(value);
}

inline std::string Fields(
    std::initializer_list<std::pair<std::string_view, std::string_view>> fields) {
  std::string bytes;
  for (const auto& [name, value] : fields) bytes += Field(name, value);
  return bytes;
}

inline std::string RequestFields(std::string_view path) {
  return Fields({{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "a"}});
}

constexpr int kEndStream = NGHTTP2_FLAG_END_STREAM;
constexpr int kEndHeaders = NGHTTP2_FLAG_END_HEADERS;

// A request; its body is still to come unless `flags` has kEndStream.
inline std::string Request(int32_t stream, std::string_view path, int flags = kEndStream) {
  return Frame(NGHTTP2_HEADERS, flags | kEndHeaders, stream, RequestFields(path));
}

inline std::string Reset(int32_t stream) {
  return Frame(NGHTTP2_RST_STREAM, 0, stream, Number(NGHTTP2_CANCEL, 4));
}

}  // namespace penstock::http2
