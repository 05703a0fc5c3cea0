#include "router/grpc/answer.h"

#include <absl/strings/escaping.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>

#include "proto/grpc_standard.pb.h"
#include "router/grpc/frame.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

namespace standard = grpc_standard::v1;

// Limit of an error message. Clients accept 8 KiB of trailers; the message may be in them three
// times, and percent-encoding can triple its size.
constexpr size_t kMessageBytesMax = 1000;
constexpr char kDomain[] = "penstock";

class WholeBody final : public BodySource {
 public:
  explicit WholeBody(std::string bytes) : bytes_(std::move(bytes)) {}

  State Pull(std::string& out, size_t max) override {
    const size_t taken = std::min(max, bytes_.size() - sent_);
    out.append(bytes_, sent_, taken);
    sent_ += taken;
    return sent_ == bytes_.size() ? State::kEnd : State::kMore;
  }
  std::vector<HttpHeader> Trailers() override { return StatusTrailers(absl::OkStatus()); }

 private:
  const std::string bytes_;
  size_t sent_ = 0;
};

// The first kMessageBytesMax bytes of UTF-8 text, cut between characters.
std::string_view Shorten(std::string_view text) {
  if (text.size() <= kMessageBytesMax) return text;
  size_t size = kMessageBytesMax;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  return text.substr(0, size);
}

void AddDetail(const char* type, const google::protobuf::MessageLite& detail,
               standard::Status& status) {
  google::protobuf::Any& added = *status.add_details();
  added.set_type_url(std::string("type.googleapis.com/google.rpc.") + type);
  added.set_value(detail.SerializeAsString());
}

// The encoded google.rpc.Status; empty when the status has no detail beside code and message.
std::string DetailsOf(const absl::Status& status, std::string_view message) {
  const ErrorDetail detail = DetailOf(status);
  standard::Status details;
  if (!detail.reason.empty()) {
    standard::ErrorInfo info;
    info.set_reason(detail.reason);
    info.set_domain(kDomain);
    AddDetail("ErrorInfo", info, details);
  }
  if (detail.retry_after) {
    standard::RetryInfo retry;
    *retry.mutable_retry_delay() =
        google::protobuf::util::TimeUtil::NanosecondsToDuration(detail.retry_after->count());
    AddDetail("RetryInfo", retry, details);
  }
  if (!detail.field.empty()) {
    standard::BadRequest bad;
    standard::FieldViolation& violation = *bad.add_field_violations();
    violation.set_field(std::string(Shorten(detail.field)));
    violation.set_description(std::string(message));
    AddDetail("BadRequest", bad, details);
  }
  if (details.details().empty()) return "";
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(message));
  return details.SerializeAsString();
}

}  // namespace

HttpResponse AnswerHead() {
  return {.status = 200,
          .headers = {{"content-type", "application/grpc"}, {"grpc-accept-encoding", "identity"}}};
}

std::vector<HttpHeader> StatusTrailers(const absl::Status& status) {
  std::vector<HttpHeader> trailers = {
      {"grpc-status", std::to_string(static_cast<int>(status.code()))}};
  if (status.ok()) return trailers;
  const std::string whole = Message(status);
  const std::string_view message = Shorten(whole);
  trailers.push_back({"grpc-message", PercentEncode(message)});
  const std::string details = DetailsOf(status, message);
  if (!details.empty()) trailers.push_back({"grpc-status-details-bin", Base64(details)});
  return trailers;
}

HttpResponse TrailersOnly(const absl::Status& status) {
  HttpResponse response = AnswerHead();
  for (HttpHeader& trailer : StatusTrailers(status)) {
    response.headers.push_back(std::move(trailer));
  }
  return response;
}

void Respond(Exchange& exchange, const google::protobuf::MessageLite& message) {
  std::string bytes;
  AppendFrame(message, bytes);
  exchange.Stream(AnswerHead(), std::make_shared<WholeBody>(std::move(bytes)));
}

void Respond(Exchange& exchange, const absl::Status& error) {
  exchange.Respond(TrailersOnly(error));
}

absl::StatusCode CodeOfHttpStatus(int status) {
  switch (status) {
    case 400:
      return absl::StatusCode::kInternal;
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kUnimplemented;
    case 408:
      return absl::StatusCode::kDeadlineExceeded;
    case 413:
    case 431:
      return absl::StatusCode::kResourceExhausted;
    case 429:
    case 502:
    case 503:
    case 504:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kUnknown;
  }
}

std::string PercentEncode(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

std::string Base64(std::string_view bytes) {
  std::string encoded = absl::Base64Escape({bytes.data(), bytes.size()});
  encoded.resize(encoded.find_last_not_of('=') + 1);
  return encoded;
}

}  // namespace penstock
