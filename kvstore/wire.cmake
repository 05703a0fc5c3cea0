penstock_module(penstock_wire
  SRCS crc32c.cc slab.cc wire_budget.cc wire_loopback.cc
  HDRS slab.h wire.h wire_budget.h wire_loopback.h
  DEPS penstock_base)

penstock_module(penstock_nccl SRCS nccl_library.cc HDRS nccl_abi.h nccl_library.h DEPS penstock_base ${CMAKE_DL_LIBS})

penstock_module(penstock_wire_ucx
  SRCS nccl_channel.cc nccl_communicator.cc wire_address.cc wire_boot_id.cc wire_device_probe.cc
       wire_endpoint.cc wire_loop.cc wire_nccl.cc wire_packets.cc wire_same_host_lane.cc wire_same_host_receiver.cc
       wire_socket.cc wire_ucx.cc wire_ucx_connection.cc wire_ucx_device.cc wire_ucx_lanes.cc wire_ucx_memory.cc wire_ucx_nccl.cc
       wire_ucx_side.cc
  HDRS nccl_channel.h nccl_communicator.h wire_address.h wire_device_probe.h wire_endpoint.h
       wire_loop.h wire_nccl.h wire_packets.h wire_same_host.h wire_socket.h wire_ucx.h
       wire_ucx_connection.h wire_ucx_link.h wire_ucx_memory.h wire_ucx_side.h
  DEPS penstock_nccl penstock_wire ucx::ucp ucx::ucs ucm ${CMAKE_DL_LIBS})
