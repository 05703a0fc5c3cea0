#include "kvstore/tiers/nvme/extent_codec.h"

namespace penstock {

static_assert(kStoredRaw == static_cast<uint8_t>(KvCodec::kRaw));

bool IsExtentCodec(uint8_t codec) { return IsLossless({static_cast<KvCodec>(codec)}); }

}  // namespace penstock
