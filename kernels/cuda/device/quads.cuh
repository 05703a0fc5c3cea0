#pragma once

// The arithmetic of the lossless codecs on four values at once, a byte each, and rows of bytes that
// are aligned to 2 bytes only.

#include "kernels/cuda/device/device.cuh"

namespace penstock::cuda {

PENSTOCK_DEVICE uint32_t ExponentOf(uint32_t bits) { return bits >> 7 & 0xffu; }
// The same operation on each of the four bytes of a word.
PENSTOCK_DEVICE uint32_t SubtractBytes(uint32_t a, uint32_t b) {
  constexpr uint32_t kTop = 0x80808080u;
  return ((a | kTop) - (b & ~kTop)) ^ ((a ^ ~b) & kTop);
}
// Sets the upper bit of the bytes that are not zero; each byte is at most 128.
PENSTOCK_DEVICE uint32_t NonZeroBytes(uint32_t v) { return (v + 0x7f7f7f7fu) & 0x80808080u; }
// Sets all bits of the bytes whose upper bit is set; the other bits are zero.
PENSTOCK_DEVICE uint32_t FillBytes(uint32_t upper) { return (upper << 1) - (upper >> 7); }

// Four neighbouring values, a byte each: sign and mantissa, and exponent.
struct Quad {
  uint32_t signs, exponents;

  PENSTOCK_DEVICE static Quad Of(uint32_t first, uint32_t second) {
    const uint32_t low = Permute(first, second, 0x6420), high = Permute(first, second, 0x7531);
    return {(high & 0x80808080u) | (low & 0x7f7f7f7fu),
            (high << 1 & 0xfefefefeu) | (low >> 7 & 0x01010101u)};
  }
  // The exponent codes: 1 .. 15 inside the window above the base; 0 for exponent 0 and for escapes.
  // `bases` has the base in each byte. The difference of exponent 0 is outside the window, because
  // bases are at most kExponentBaseMax.
  PENSTOCK_DEVICE uint32_t Codes(uint32_t bases) const {
    const uint32_t code = SubtractBytes(exponents, bases);
    return code & ~FillBytes(NonZeroBytes(code >> 4 & 0x0f0f0f0fu));
  }
  // Sets the upper bit of the bytes of escapes.
  PENSTOCK_DEVICE uint32_t Escapes(uint32_t codes) const {
    const uint32_t inside = NonZeroBytes(codes);
    const uint32_t some = (exponents & 0x7f7f7f7fu) + 0x7f7f7f7fu;
    return (some | exponents) & 0x80808080u & ~inside;
  }
  // The quad of codes; escapes get exponent 0.
  PENSTOCK_DEVICE static Quad Join(uint32_t signs, uint32_t codes, uint32_t bases) {
    return {signs, (codes + bases) & FillBytes(NonZeroBytes(codes))};
  }
  // The values as two pairs of bf16.
  PENSTOCK_DEVICE Words2 Values() const {
    const uint32_t high = (signs & 0x80808080u) | (exponents >> 1 & 0x7f7f7f7fu);
    const uint32_t low = (signs & 0x7f7f7f7fu) | (exponents << 7 & 0x80808080u);
    return {{Permute(low, high, 0x5140), Permute(low, high, 0x7362)}};
  }
};
PENSTOCK_DEVICE uint32_t FourBytes(uint32_t byte) { return byte * 0x01010101u; }

// Eight neighbouring values of one lane.
struct Octet {
  Words4 words;
  PENSTOCK_DEVICE uint32_t bits(int i) const {
    return i % 2 == 0 ? words.word[i / 2] & 0xffffu : words.word[i / 2] >> 16;
  }
  PENSTOCK_DEVICE bool IsEscape(int i, uint32_t base) const {
    const uint32_t exponent = ExponentOf(bits(i));
    return exponent != 0 && exponent - base - 1 >= 15;
  }
  PENSTOCK_DEVICE Quad quad(int i) const {
    return Quad::Of(words.word[2 * i], words.word[2 * i + 1]);
  }
  PENSTOCK_DEVICE uint32_t CountEscapes(uint32_t bases) const {
    uint32_t count = 0;
    PENSTOCK_UNROLL
    for (int i = 0; i < 2; ++i) count += CountBits(quad(i).Escapes(quad(i).Codes(bases)));
    return count;
  }
};

// A row of eight bytes a lane, at an address that is aligned to 2 bytes only; the first `lanes`
// lanes have bytes. The lanes access aligned words, whose bytes belong to a lane and the next one.
struct ByteRow {
  std::byte* start;
  uint32_t lanes;

  PENSTOCK_DEVICE void Save(const Words2& words) const {
    const uint32_t lane = Lane(), shift = Shift();
    if (shift == 0) {
      if (lane < lanes) Store(start + lane * 8, words);
      return;
    }
    const uint64_t mine = Join(words), next = Next(mine);
    if (lane >= lanes) return;
    const uint64_t last = mine >> (64 - shift);
    std::byte* word = start + lane * 8 + 8 - shift / 8;
    if (lane + 1 < lanes) {
      Store(word, Split(last | next << shift));
    } else {
      SaveHalves(word, last, shift / 16);
    }
    if (lane == 0) SaveHalves(start, mine, 4 - shift / 16);
  }
  // The aligned words of a lane, as they were loaded; the second one is the last lane's only.
  struct Loaded {
    Words2 first, last;
  };
  // Loads no aligned word that has no byte of the row.
  PENSTOCK_DEVICE Loaded Load() const {
    const uint32_t lane = Lane();
    const std::byte* word = start + lane * 8 - Shift() / 8;
    Loaded loaded = {};
    if (lane < lanes) loaded.first = *reinterpret_cast<const Words2*>(word);
    if (lane + 1 == lanes && Shift() != 0) {
      loaded.last = *reinterpret_cast<const Words2*>(word + 8);
    }
    return loaded;
  }
  PENSTOCK_DEVICE Words2 Align(const Loaded& loaded) const {
    const uint32_t shift = Shift();
    if (shift == 0) return loaded.first;
    const uint64_t first = Join(loaded.first), next = Next(first);
    const uint64_t upper = Lane() + 1 == lanes ? Join(loaded.last) : next;
    return Split(first >> shift | upper << (64 - shift));
  }

 private:
  static PENSTOCK_DEVICE uint32_t Lane() { return static_cast<uint32_t>(ThreadX()) % 32; }
  // The bits of the first aligned word before the row.
  PENSTOCK_DEVICE uint32_t Shift() const {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(start)) % 8 * 8;
  }
  static PENSTOCK_DEVICE uint64_t Join(const Words2& words) {
    return words.word[0] | static_cast<uint64_t>(words.word[1]) << 32;
  }
  static PENSTOCK_DEVICE Words2 Split(uint64_t v) {
    return {{static_cast<uint32_t>(v), static_cast<uint32_t>(v >> 32)}};
  }
  // The value of the next lane.
  static PENSTOCK_DEVICE uint64_t Next(uint64_t v) {
    const int lane = static_cast<int>(Lane()) + 1;
    const Words2 words = Split(v);
    return Join({{Shuffle(words.word[0], lane % 32), Shuffle(words.word[1], lane % 32)}});
  }
  static PENSTOCK_DEVICE void SaveHalves(std::byte* to, uint64_t v, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(v >> (16 * i));
    }
  }
};

}  // namespace penstock::cuda
