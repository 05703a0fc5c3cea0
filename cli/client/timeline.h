#pragma once

#include <string>

#include "proto/inference.pb.h"

namespace penstock {

// The stages of one answer over time: a bar for each, `width` columns for the whole answer, each
// line ending in '\n'. Bars overlap where stages overlapped.
std::string TimelineText(const v1::Timing& timing, int width);

}  // namespace penstock
