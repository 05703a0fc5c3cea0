#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock {

// Appends values in the MessagePack format (github.com/msgpack/msgpack, spec.md), each in its
// shortest form unless said otherwise. An array or a map is followed by its elements. The caller
// bounds what it writes. One thread at a time.
class MsgpackWriter {
 public:
  void Nil();
  void Uint(uint64_t value);
  // Always the 9 bytes of uint 64: some decoders expect that of hashes, whatever their value.
  void Uint64(uint64_t value);
  void Double(double value);
  void Text(std::string_view text);  // at most 65,535 bytes
  void Array(uint32_t elements);
  void Map(uint32_t pairs);

  std::string Take() { return std::move(out_); }

 private:
  void Byte(uint8_t byte) { out_.push_back(static_cast<char>(byte)); }
  void BigEndian(uint64_t value, int bytes);

  std::string out_;
};

}  // namespace penstock
