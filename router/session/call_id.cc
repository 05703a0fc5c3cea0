#include "router/session/call_id.h"

#include <string_view>

namespace penstock {
namespace {

constexpr uint32_t kLetters = 24;
constexpr std::string_view kAlphabet =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
uint64_t Next(uint64_t& state) {
  uint64_t z = state += 0x9e37'79b9'7f4a'7c15;
  z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9;
  z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11eb;
  return z ^ (z >> 31);
}

}  // namespace

std::string MakeCallId(const CallKey& key, uint32_t length) {
  uint64_t state = key.seed;
  state = Next(state) ^ (uint64_t{key.choice} << 32 | key.call);
  std::string id = length == 0 ? "call_" : "";
  const uint32_t letters = length == 0 ? kLetters : length;
  for (uint32_t i = 0; i < letters; ++i) id += kAlphabet[Next(state) % kAlphabet.size()];
  return id;
}

}  // namespace penstock
