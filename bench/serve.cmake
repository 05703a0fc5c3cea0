# `penstock bench serve`: what puts load on a server, in parts that need no server, no gRPC, and both.
penstock_module(penstock_load_core
  SRCS load/draw.cc load/http_response_parser.cc load/openai_event.cc load/plot.cc load/record.cc
       load/report.cc load/request_trace.cc load/requests.cc load/sse_parser.cc load/summary.cc
  HDRS load/draw.h load/http_response_parser.h load/openai_event.h load/record.h load/report.h
       load/requests.h load/sse_parser.h load/summary.h
  DEPS penstock_edge nlohmann_json::nlohmann_json)
penstock_module(penstock_load
  SRCS load/http_client.cc load/load_run.cc load/openai_target.cc
  HDRS load/http_client.h load/load_run.h load/target.h
  DEPS penstock_load_core)
penstock_module(penstock_load_grpc
  SRCS load/grpc_target.cc
  HDRS load/grpc_target.h
  DEPS penstock_load penstock_proto)
