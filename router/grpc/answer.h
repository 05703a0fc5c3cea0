#pragma once

#include <google/protobuf/message_lite.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "http/exchange.h"

namespace penstock {

// gRPC's mapping of an answer to HTTP/2: the HTTP status is always 200; the gRPC status is in the
// trailers, or in the head when there is no body.

HttpResponse AnswerHead();
// grpc-status; for an error also grpc-message and, with an ErrorDetail
// (router/request/error_detail.h), grpc-status-details-bin with google.rpc's ErrorInfo, RetryInfo
// and BadRequest.
std::vector<HttpHeader> StatusTrailers(const absl::Status& status);
// An error before any message. gRPC clients may retry such a call transparently.
HttpResponse TrailersOnly(const absl::Status& status);

// Answers a unary call.
void Respond(Exchange& exchange, const google::protobuf::MessageLite& message);
void Respond(Exchange& exchange, const absl::Status& error);

// The gRPC status code for an HTTP status, as gRPC maps answers without a gRPC status:
// https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md. 408, 413 and 431 are
// not in that table and mapped by their meaning.
absl::StatusCode CodeOfHttpStatus(int status);

// The encoding of grpc-message: '%' and bytes that are not printable ASCII become e.g. "%E2".
std::string PercentEncode(std::string_view text);
// The encoding of metadata whose names end in -bin: base64 without padding.
std::string Base64(std::string_view bytes);

}  // namespace penstock
