#pragma once

#include <string>
#include <vector>

#include "proto/inference.pb.h"

namespace penstock {

// The deltas of a chunk, each "{...}" for one event of a stream. Clients join the strings of equal
// keys, so the id and the name of a call come once, alone and before its arguments. At least one.
std::vector<std::string> DeltasOf(const v1::Chunk& chunk);

// False if the chunk has other parts of an answer, and no text.
bool BeginsWithText(const v1::Chunk& chunk);

// "message":{...} of a whole answer.
void AppendMessage(const v1::Choice& choice, std::string& out);

}  // namespace penstock
