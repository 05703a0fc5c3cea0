# Names only: routers know policies, too.
penstock_module(penstock_kv_policy
  SRCS kv_policy.cc
  HDRS kv_policy.h
  DEPS penstock_base)
penstock_module(penstock_kv_codec
  SRCS codec.cc codec_choice.cc codec_calibration.cc codec_calibration_measure.cc codec_cgx.cc codec_header.cc
       codec_kv2.cc codec_lossless.cc codec_rows.cc link_codecs.cc link_rate.cc
  HDRS codec.h codec_choice.h codec_calibration.h codec_header.h codec_parts.h
       link_codecs.h link_rate.h
  DEPS penstock_base penstock_kernels penstock_wire)
# The same bytes from every compiler and machine.
target_compile_options(penstock_kv_codec PRIVATE -ffp-contract=off)
