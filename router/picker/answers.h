#pragma once

#include <string>

#include "http/http_message.h"
#include "proto/ext_proc.pb.h"

namespace penstock {

// The answers of the external processing protocol. All are pure.

// The part of a request or response that an answer is about.
enum class Part { kRequest, kResponse };

// The gateway continues without a change.
envoy::service::ext_proc::v3::ProcessingResponse PassHeaders(Part part);
envoy::service::ext_proc::v3::ProcessingResponse PassBody(Part part);
envoy::service::ext_proc::v3::ProcessingResponse PassTrailers(Part part);
// A piece of a body that a gateway in the mode FULL_DUPLEX_STREAMED gets back.
envoy::service::ext_proc::v3::ProcessingResponse BodyPiece(Part part, std::string bytes, bool last);

// Names the endpoint, in the header and in the metadata: with the answer to the request's headers,
// or, if the gateway has the answer to those already, with the answer to its body.
enum class NamedWith { kHeaders, kBody };
envoy::service::ext_proc::v3::ProcessingResponse NameEndpoint(const std::string& endpoint,
                                                              NamedWith with);

// The gateway answers the client so.
envoy::service::ext_proc::v3::ProcessingResponse AnswerClient(const HttpResponse& response);

}  // namespace penstock
