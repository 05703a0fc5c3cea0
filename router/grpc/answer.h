#pragma once

#include <google/protobuf/message_lite.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "http/exchange.h"

namespace penstock {

// How gRPC says an answer in HTTP: always a 200, and the status in what follows the body, or in the
// head where there is no body.

HttpResponse AnswerHead();
// grpc-status, and for an error grpc-message and, where it says more
// (router/request/error_detail.h), grpc-status-details-bin with google.rpc's ErrorInfo, RetryInfo
// and BadRequest.
std::vector<HttpHeader> StatusTrailers(const absl::Status& status);
// An error before any message, which clients may try again without knowing of it.
HttpResponse TrailersOnly(const absl::Status& status);

// The whole answer of a unary call.
void Respond(Exchange& exchange, const google::protobuf::MessageLite& message);
void Respond(Exchange& exchange, const absl::Status& error);

// The code that gRPC has for an answer that is not its own.
// https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md, and 408, 413 and 431 by
// what they mean here.
absl::StatusCode CodeOfHttpStatus(int status);

// As grpc-message has it: what is not printable ASCII, and '%', as "%E2".
std::string PercentEncode(std::string_view text);
// As metadata whose names end in -bin have it: without padding.
std::string Base64(std::string_view bytes);

}  // namespace penstock
