#include "tests/router/service/raw_call.h"

#include <grpcpp/generic/generic_stub.h>

#include <vector>

namespace penstock {
namespace {

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Valid() || !buffer.Dump(&slices).ok()) return "";
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

}  // namespace

RawAnswer RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto wait = [&] { return queue.Next(&tag, &ok) && ok; };
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  wait();
  const grpc::Slice slice(request);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  wait();
  call->WritesDone(nullptr);
  wait();
  RawAnswer answer;
  grpc::ByteBuffer received;
  call->Read(&received, nullptr);
  if (wait()) answer.bytes = Bytes(received);
  call->Finish(&answer.status, nullptr);
  wait();
  queue.Shutdown();
  return answer;
}

}  // namespace penstock
