#include "router/grpc/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <deque>
#include <set>

#include "router/grpc/answer.h"
#include "router/grpc/frame.h"
#include "router/grpc/standard_services.h"
#include "router/request/message_check.h"

namespace penstock {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using grpc_standard::v1::FileDescriptorResponse;
using grpc_standard::v1::ServerReflectionRequest;
using grpc_standard::v1::ServerReflectionResponse;

constexpr size_t kQuestionBytesMax = 4 << 10;
constexpr size_t kQuestionsMax = 64;  // requests whose responses the client has not read

// Adds `file` and all its imports, each once, so that the client can build its descriptors.
void AddFiles(const FileDescriptor& file, std::set<const FileDescriptor*>& added,
              FileDescriptorResponse& response) {
  if (!added.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response.add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddFiles(*file.dependency(i), added, response);
  }
}

void SetError(const absl::Status& status, ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(static_cast<int>(status.code()));
  response.mutable_error_response()->set_error_message(Message(status));
}

// In the program's own descriptors, or in those of the standard services.
template <class Find>
const FileDescriptor* FindFile(Find find, const std::string& asked) {
  const FileDescriptor* own = (DescriptorPool::generated_pool()->*find)(asked);
  return own != nullptr ? own : (StandardServices().*find)(asked);
}

void SetFile(const FileDescriptor* file, std::string_view asked,
             ServerReflectionResponse& response) {
  if (file == nullptr) return SetError(NotFound("there is no {} here", asked), response);
  std::set<const FileDescriptor*> added;
  AddFiles(*file, added, *response.mutable_file_descriptor_response());
}

// Both directions of one stream. Called on the connection's thread, except for StandingStream's
// methods.
class ReflectionStream final : public StandingStream, public BodySink {
 public:
  ReflectionStream(std::vector<std::string> services, std::shared_ptr<Exchange> exchange)
      : StandingStream(std::move(exchange)), services_(std::move(services)) {}

  bool Take(std::string_view bytes) override {
    const absl::Status status =
        deframer_.Take(bytes, [this](std::string_view message) { return Enqueue(message); });
    if (!status.ok()) {
      End(status);
      return false;
    }
    Wake();
    return true;
  }

  void End() override { StandingStream::End(deframer_.End()); }
  using StandingStream::End;

 private:
  absl::Status Enqueue(std::string_view message) {
    if (questions_.size() >= kQuestionsMax) {
      return ResourceExhausted("{} questions wait for their answers to be read, which is the limit",
                               kQuestionsMax);
    }
    ServerReflectionRequest question;
    RETURN_IF_ERROR(ParseChecked(message, question));
    questions_.push_back(std::move(question));
    return absl::OkStatus();
  }

  bool Append(std::string& out, size_t max) override {
    while (!questions_.empty() && out.size() < max) {
      AppendFrame(Reflect(questions_.front(), services_), out);
      questions_.pop_front();
    }
    return !questions_.empty();
  }

  const std::vector<std::string> services_;
  Deframer deframer_{kQuestionBytesMax};
  std::deque<ServerReflectionRequest> questions_;
};

}  // namespace

ServerReflectionResponse Reflect(const ServerReflectionRequest& request,
                                 const std::vector<std::string>& services) {
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      SetFile(FindFile(&DescriptorPool::FindFileByName, request.file_by_filename()),
              request.file_by_filename(), response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      SetFile(FindFile(&DescriptorPool::FindFileContainingSymbol, request.file_containing_symbol()),
              request.file_containing_symbol(), response);
      break;
    case ServerReflectionRequest::kListServices:
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      break;
    case ServerReflectionRequest::kFileContainingExtension:
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      SetError(absl::UnimplementedError("there are no extensions here"), response);
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      SetError(InvalidArgument("the request asks for nothing"), response);
      break;
  }
  return response;
}

std::shared_ptr<BodySink> OpenReflection(std::vector<std::string> services,
                                         StandingStreams& streams,
                                         const std::shared_ptr<Exchange>& exchange) {
  const auto stream = std::make_shared<ReflectionStream>(std::move(services), exchange);
  if (const absl::Status added = streams.Add(stream); !added.ok()) stream->End(added);
  exchange->Stream(AnswerHead(), stream);
  return stream;
}

}  // namespace penstock
