#include "kvstore/wire/ucx/ucx_memory.h"

#include <ucp/api/ucp.h>

namespace penstock {

bool UcxReachesDevices(ucp_context* context) {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  return ucp_context_query(context, &attributes) == UCS_OK &&
         (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
}

UcxBuffer UcxBufferOf(const std::byte* data, MemoryKind memory) {
  return {
      .data = const_cast<std::byte*>(data),
      .memory_type = memory == MemoryKind::kDevice ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST};
}

}  // namespace penstock
