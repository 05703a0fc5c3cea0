# To compare with; nothing that serves links them.
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(LZ4 REQUIRED IMPORTED_TARGET liblz4)

penstock_module(penstock_bench_kv_source
  SRCS kv_source.cc
  HDRS kv_source.h
  DEPS penstock_kv_codec penstock_load_model penstock_tokenizer)

penstock_module(penstock_bench_codec
  SRCS codec.cc codec_general.cc
  HDRS codec.h codec_general.h
  DEPS penstock_bench_kv_source penstock_bench_report PkgConfig::ZSTD PkgConfig::LZ4)

penstock_module(penstock_bench_kv_eval
  SRCS kv_eval.cc kv_eval_report.cc kv_eval_session.cc
  HDRS kv_eval.h kv_eval_session.h
  DEPS penstock_bench_kv_source nlohmann_json::nlohmann_json)
