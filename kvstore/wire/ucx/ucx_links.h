#pragma once

#include <memory>
#include <string>

#include "kernels/transfer_device.h"
#include "kvstore/wire/net/link.h"

namespace penstock {

// This room, kvstore/wire/ucx, has links over UCX's active messages, between processes that
// exchanged their addresses by other means. Only ucx_links.cc includes UCX's headers.
//
// UCX authenticates no caller: every host that reaches a port of its TCP transport can write to any
// memory of the process. So it is used in networks that the operator trusts only
// (docs/adr/0030-sealed-wire.md).
//
// Each link has its own UCX worker with a single endpoint. It can therefore be cut at any time, in
// any state: destroying the worker releases the last reference to every buffer.

// Uses the transports of the environment variable UCX_TLS, else TCP, on the network interface
// `device` (empty: all) unless UCX_NET_DEVICES names others. `gpu` is the GPU whose memory may be
// sent and received if this UCX supports it; null: host memory only.
absl::StatusOr<std::unique_ptr<WireLinks>> OpenUcxLinks(const std::string& device,
                                                        std::shared_ptr<const TransferDevice> gpu);

// Undoes what loading UCX's library does to the process: it installs signal handlers and patches
// memory calls. Called by every wire, because programs link the library. Any thread, any number of
// times.
void DisableUcxSideEffects();

// The transports that the operator has chosen with UCX_TLS; empty: none.
std::string ChosenUcxTransports();

}  // namespace penstock
