#pragma once

#include <string>

#include "proto/inference.pb.h"

namespace penstock {

// Where the time of one answer went: a bar for each stage, `width` columns for all of it, each line
// ending in '\n'. Stages overlap where they do.
std::string TimelineText(const v1::Timing& timing, int width);

}  // namespace penstock
