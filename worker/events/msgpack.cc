#include "worker/events/msgpack.h"

#include <bit>

#include "base/check.h"

namespace penstock {

void MsgpackWriter::BigEndian(uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    Byte(static_cast<uint8_t>(value >> shift));
  }
}

void MsgpackWriter::Nil() { Byte(0xc0); }

void MsgpackWriter::Uint(uint64_t value) {
  if (value < 0x80) return Byte(static_cast<uint8_t>(value));
  const int bytes = value <= 0xff ? 1 : value <= 0xffff ? 2 : value <= 0xffffffff ? 4 : 8;
  Byte(static_cast<uint8_t>(0xcc + std::countr_zero(static_cast<unsigned>(bytes))));
  BigEndian(value, bytes);
}

void MsgpackWriter::Uint64(uint64_t value) {
  Byte(0xcf);
  BigEndian(value, 8);
}

void MsgpackWriter::Double(double value) {
  Byte(0xcb);
  BigEndian(std::bit_cast<uint64_t>(value), 8);
}

void MsgpackWriter::Text(std::string_view text) {
  PENSTOCK_CHECK_LE(text.size(), 0xffffu);
  if (text.size() < 32) {
    Byte(static_cast<uint8_t>(0xa0 | text.size()));
  } else {
    const int bytes = text.size() <= 0xff ? 1 : 2;
    Byte(bytes == 1 ? 0xd9 : 0xda);
    BigEndian(text.size(), bytes);
  }
  out_.append(text);
}

void MsgpackWriter::Array(uint32_t elements) {
  if (elements < 16) return Byte(static_cast<uint8_t>(0x90 | elements));
  const int bytes = elements <= 0xffff ? 2 : 4;
  Byte(bytes == 2 ? 0xdc : 0xdd);
  BigEndian(elements, bytes);
}

void MsgpackWriter::Map(uint32_t pairs) {
  PENSTOCK_CHECK_LT(pairs, 16u);
  Byte(static_cast<uint8_t>(0x80 | pairs));
}

}  // namespace penstock
