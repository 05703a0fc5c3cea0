#pragma once

#include <google/protobuf/descriptor.h>

namespace penstock {

// The descriptors of grpc.health.v1 and grpc.reflection.v1 (and v1alpha) under their own names, for
// clients that ask for what they see in the list of services. They are made from the messages in
// grpc_standard.proto, whose package differs. Immutable once made; any thread.
const google::protobuf::DescriptorPool& StandardServices();

}  // namespace penstock
