#pragma once

#include <span>
#include <vector>

#include "decode_worker/engine/decode_sequence.h"

namespace penstock {

// Makes the beams of the next step: the i-th continues the parent of children[i] with its token.
// `beams` are the present ones, by their numbers; each has the KV of all tokens but its last one.
// Children of one parent share its full blocks. One of them keeps its partial block, the others
// copy it into the partial blocks of beams without children, or into blocks of the session's
// growth: so a search of k beams takes k blocks for the tokens of one block, as k choices do.
std::vector<DecodeSequence> ForkBeams(std::vector<DecodeSequence> beams,
                                      std::span<const BeamChild> children, const PagedKv& kv);

}  // namespace penstock
