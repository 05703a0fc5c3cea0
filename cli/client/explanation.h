#pragma once

#include <string>

#include "proto/inference.pb.h"

namespace penstock {

// One sentence for people: the chosen pair of workers, and the term of the cost in which it beats
// the next one most. Pure.
std::string ReasonOf(const v1::Explanation& explanation);

}  // namespace penstock
