# Names only: routers know policies, too.
penstock_module(penstock_kv_policy
  SRCS kv_policy.cc
  HDRS kv_policy.h
  DEPS penstock_base)
penstock_module(penstock_kv_codec
  SRCS codec.cc codec_choice.cc codec_calibration.cc codec_calibration_measure.cc codec_cgx.cc codec_header.cc codec_header_check.cc
       codec_kv2.cc codec_lossless.cc codec_rows.cc link_codecs.cc link_rate.cc
  HDRS codec.h codec_choice.h codec_calibration.h codec_header.h codec_parts.h
       link_codecs.h link_rate.h
  DEPS penstock_base penstock_kernels penstock_wire)
# The same bytes from every compiler and machine.
target_compile_options(penstock_kv_codec PRIVATE -ffp-contract=off)

# The same on a GPU, over the emulated device for tests and, where PENSTOCK_CUDA is on, over the real one.
set(device_kv_codec device_kv_codec.cc device_kv_codec_cgx.cc device_kv_codec_parts.cc device_slab_coder.cc)
add_library(penstock_device_kv_codec_emulated STATIC EXCLUDE_FROM_ALL ${device_kv_codec})
target_link_libraries(penstock_device_kv_codec_emulated PUBLIC penstock_kv_codec penstock_cuda_emulated)
if(PENSTOCK_CUDA)
  add_library(penstock_device_kv_codec STATIC ${device_kv_codec})
  target_link_libraries(penstock_device_kv_codec PUBLIC penstock_kv_codec penstock_cuda)
endif()
