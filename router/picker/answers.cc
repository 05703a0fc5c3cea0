#include "router/picker/answers.h"

#include "router/picker/gateway_message.h"

namespace penstock {
namespace {

using ext_proc::ProcessingResponse;

void SetHeader(const std::string& name, const std::string& value,
               ext_proc::HeaderMutation& mutation) {
  ext_proc::HeaderValueOption& option = *mutation.add_set_headers();
  option.mutable_header()->set_key(name);
  option.mutable_header()->set_raw_value(value);
  option.set_append_action(ext_proc::HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
}

ext_proc::CommonResponse& BodyOf(Part part, ProcessingResponse& answer) {
  ext_proc::BodyResponse& body =
      part == Part::kRequest ? *answer.mutable_request_body() : *answer.mutable_response_body();
  return *body.mutable_response();
}

}  // namespace

ProcessingResponse PassHeaders(Part part) {
  ProcessingResponse answer;
  (part == Part::kRequest ? answer.mutable_request_headers() : answer.mutable_response_headers())
      ->mutable_response();
  return answer;
}

ProcessingResponse PassBody(Part part) {
  ProcessingResponse answer;
  BodyOf(part, answer);
  return answer;
}

ProcessingResponse PassTrailers(Part part) {
  ProcessingResponse answer;
  part == Part::kRequest ? answer.mutable_request_trailers() : answer.mutable_response_trailers();
  return answer;
}

ProcessingResponse BodyPiece(Part part, std::string bytes, bool last) {
  ProcessingResponse answer;
  ext_proc::StreamedBodyResponse& piece =
      *BodyOf(part, answer).mutable_body_mutation()->mutable_streamed_response();
  piece.set_body(std::move(bytes));
  piece.set_end_of_stream(last);
  return answer;
}

ProcessingResponse NameEndpoint(const std::string& endpoint, NamedWith with) {
  ProcessingResponse answer;
  ext_proc::CommonResponse& common = with == NamedWith::kHeaders
                                         ? *answer.mutable_request_headers()->mutable_response()
                                         : BodyOf(Part::kRequest, answer);
  SetHeader(kDestinationKey, endpoint, *common.mutable_header_mutation());
  common.set_clear_route_cache(true);  // routes may match the header
  google::protobuf::Struct named;
  (*named.mutable_fields())[kDestinationKey].set_string_value(endpoint);
  google::protobuf::Value& metadata =
      (*answer.mutable_dynamic_metadata()->mutable_fields())[kDestinationNamespace];
  *metadata.mutable_struct_value() = std::move(named);
  return answer;
}

ProcessingResponse AnswerClient(const HttpResponse& response) {
  ProcessingResponse answer;
  ext_proc::ImmediateResponse& immediate = *answer.mutable_immediate_response();
  immediate.mutable_status()->set_code(response.status);
  for (const HttpHeader& header : response.headers) {
    SetHeader(header.name, header.value, *immediate.mutable_headers());
  }
  immediate.set_body(response.body);
  immediate.set_details("endpoint_picker_refused");
  return answer;
}

}  // namespace penstock
