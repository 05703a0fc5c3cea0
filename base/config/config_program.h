#pragma once

#include <google/protobuf/descriptor.h>

#include "base/config/config.h"
#include "base/program/program.h"

namespace penstock {

// The command line of a server whose configuration is a message of the type `config`.
Program DescribeServer(const ProgramInfo& server, const google::protobuf::Descriptor& config);

}  // namespace penstock
