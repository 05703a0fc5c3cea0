#pragma once

#include <cstdint>

#include "kernels/quantised_matrix.h"

// The inner loops of products of quantised weights: one table of functions per instruction set.
// Activations are integers of 16 bits, one scale a row. A group of inputs gives an exact integer,
// and groups are added in ascending order by one f32 multiply-add each, and one more for offsets:
//     product = row scale * sum over g of (scale[g] * sum over i in g of code[i] * activation[i]
//                                          + offset[g] * sum over i in g of activation[i]).
// Integers need no order of summation, so all tables, and both ways to multiply, give equal bits.

namespace penstock {

// Limits of an activation: the largest value whose two bytes `high` and `low`, with
// value = 256 * high + low, are both in [-128, 127].
inline constexpr int kActivationMax = 127 * 256 + 127;
// Bytes before their use at which unpack asks for the codes of a panel.
inline constexpr int64_t kCodesAhead = 3072;
// Inputs whose products fit in 32 bits: 255 * kActivationMax * 256 < 2^31.
inline constexpr int64_t kGroupMax = 256;
inline constexpr int64_t kGroupMin = 16;
// Most rows that multiply_narrow takes at once.
inline constexpr int kNarrowRows = 4;
// Limit of the blocks of rows for which multiply_narrow is called, one after the other. For more
// blocks, unpacking a panel once is faster.
inline constexpr int kNarrowBlocks = 6;

// The layouts of codes (QuantisedMatrix): of 8 bits; of 4 bits, integers and those of a table; of 5
// and of 6 bits.
enum class Codes : uint8_t { kBytes, kNibbles, kTable, kFive, kSix };

// A unit of codes, of which the files of instruction sets read the constants below.
struct CodesUnit {
  int inputs;     // whose codes are in whole words
  int low_words;  // of their low bits
  int high_bits;  // of a code, which are in one more word if there are any
  int words;      // all
  // The low words of a unit have its inputs four by four, in the low and then in the high halves of
  // bytes. The number of these parts.
  int parts;
};
template <Codes kCodes>
inline constexpr CodesUnit kUnitOf = {
    .inputs = 8, .low_words = 1, .high_bits = 0, .words = 1, .parts = 2};
template <>
inline constexpr CodesUnit kUnitOf<Codes::kBytes> = {
    .inputs = 4, .low_words = 1, .high_bits = 0, .words = 1, .parts = 1};
template <>
inline constexpr CodesUnit kUnitOf<Codes::kSix> = {
    .inputs = 16, .low_words = 2, .high_bits = 2, .words = 3, .parts = 4};
template <>
inline constexpr CodesUnit kUnitOf<Codes::kFive> = {
    .inputs = 32, .low_words = 4, .high_bits = 1, .words = 5, .parts = 8};

// The form of a panel's groups (QuantisedMatrix). Plain data: the files of instruction sets call no
// inline function that other files call too, because the linker might keep the copy that was
// compiled for a newer machine.
struct PanelForm {
  Codes codes;
  // The 16 integers that codes of kTable stand for (CodeTable); otherwise null.
  const uint8_t* table;
  int group;     // inputs
  int run;       // groups of a run
  int zero;      // the zero point of all groups
  bool zeros;    // each group has its own zero points instead
  bool offsets;  // each group has offsets
  ScaleType scale;
  int64_t scales_at;  // bytes from a run's start; of its first group
  int64_t zeros_at;
  int64_t offsets_at;
  int64_t head_bytes;  // of a run
  int64_t code_bytes;  // of a group
  int64_t run_bytes;
};

// The activations of multiply_narrow.
struct NarrowRows {
  int rows;        // 1 .. kNarrowRows
  int64_t groups;  // of inputs
  // [inputs / 4][rows][2][4]: the high bytes of four inputs, the low bytes; or, unless takes_planes
  // says so, integers of 16 bits as WideProduct::input has them.
  const int8_t* planes;
  const int32_t* sums;  // [groups][rows]: sums of the activations
  int64_t ahead;        // bytes: how far before their use codes are asked for from memory
};

// Groups of a panel as unpack stores them.
struct UnpackedGroups {
  int16_t* weights;  // [inputs / 2][32][2]
  float* scales;     // [groups][32]
  float* offsets;    // [groups][32]; set if the form has offsets
};

// A product of multiply_wide.
struct WideProduct {
  int rows;        // 1 .. kTileRows
  int64_t groups;  // of 2 * pairs inputs each
  int64_t pairs;
  const int16_t* input;  // [inputs / 2][rows][2] with pairs as unpack orders them
  const int32_t* sums;   // [groups][rows]: sums of the activations; null without offsets
  UnpackedGroups panel;  // offsets null if the form has none
  float* tile;           // [rows][32]
};

struct IntegerOps {
  // Returns the largest |x[i]|; infinity or NaN if some x[i] is.
  float (*magnitude)(const float* x, int64_t size);
  // codes[i] = x[i] * factor, rounded to nearest, ties to even; |x[i] * factor| < 32767.
  void (*quantise)(const float* x, int64_t size, float factor, int16_t* codes);

  // Unpacks `groups` groups of a panel, the first of which begins a run. A weight is code - zero
  // point; the pairs of four inputs 4i .. 4i + 3 are (4i, 4i + 2) and (4i + 1, 4i + 3).
  void (*unpack)(const PanelForm& form, const std::byte* panel, int64_t groups,
                 const UnpackedGroups& target);
  // tile[r][c] = fma(sum of products of the group, scale, tile[r][c]), and with offsets
  // fma(sum of the row's activations, offset, tile[r][c]); group after group.
  void (*multiply_wide)(const WideProduct& product);

  // Multiplies `count` whole panels (1, 2 or 4; rows * count is at most 4) side by side, and stores
  // their tiles [rows][32] one after the other. Null if unpacking is as fast.
  void (*multiply_narrow)(const NarrowRows& rows, const PanelForm& form, int count,
                          const std::byte* const* panels, float* tiles);
  // True if multiply_narrow takes planes of bytes, false if it takes integers of 16 bits.
  bool (*takes_planes)(const PanelForm& form);
};

PanelForm FormOf(const QuantisedFormat& format);

// Whether this machine has AVX-512 VNNI, whose integer dot products the widest table uses.
bool VnniSupported();
// The table for ActiveIsa(): AVX-512 without VNNI uses the table of AVX2.
const IntegerOps& ActiveIntegerOps();

}  // namespace penstock
