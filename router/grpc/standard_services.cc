#include "router/grpc/standard_services.h"

#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "proto/grpc_standard.pb.h"

namespace penstock {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::DescriptorProto;
using google::protobuf::FileDescriptorProto;
using google::protobuf::MethodDescriptorProto;
using google::protobuf::ServiceDescriptorProto;

constexpr std::string_view kOwnPackage = ".penstock.grpc_standard.v1.";

// Types of fields have whole names, which begin with the package.
void Rename(DescriptorProto& message, const std::string& package) {
  for (auto& field : *message.mutable_field()) {
    if (!field.type_name().starts_with(kOwnPackage)) continue;
    field.set_type_name("." + package + "." + field.type_name().substr(kOwnPackage.size()));
  }
}

FileDescriptorProto FileOf(const std::string& name, const std::string& package,
                           const std::vector<const Descriptor*>& messages) {
  FileDescriptorProto file;
  file.set_name(name);
  file.set_package(package);
  file.set_syntax("proto3");
  for (const Descriptor* message : messages) {
    DescriptorProto& copy = *file.add_message_type();
    message->CopyTo(&copy);
    Rename(copy, package);
  }
  return file;
}

MethodDescriptorProto& AddMethod(ServiceDescriptorProto& service, const std::string& name,
                                 const std::string& input, const std::string& output) {
  MethodDescriptorProto& method = *service.add_method();
  method.set_name(name);
  method.set_input_type(input);
  method.set_output_type(output);
  method.set_server_streaming(true);
  return method;
}

FileDescriptorProto HealthFile() {
  namespace standard = grpc_standard::v1;
  FileDescriptorProto file = FileOf(
      "grpc/health/v1/health.proto", "grpc.health.v1",
      {standard::HealthCheckRequest::descriptor(), standard::HealthCheckResponse::descriptor()});
  ServiceDescriptorProto& service = *file.add_service();
  service.set_name("Health");
  AddMethod(service, "Check", "HealthCheckRequest", "HealthCheckResponse")
      .set_server_streaming(false);
  AddMethod(service, "Watch", "HealthCheckRequest", "HealthCheckResponse");
  return file;
}

FileDescriptorProto ReflectionFile(const std::string& version) {
  namespace standard = grpc_standard::v1;
  FileDescriptorProto file = FileOf(
      "grpc/reflection/" + version + "/reflection.proto", "grpc.reflection." + version,
      {standard::ExtensionRequest::descriptor(), standard::ServerReflectionRequest::descriptor(),
       standard::FileDescriptorResponse::descriptor(), standard::ServiceResponse::descriptor(),
       standard::ListServiceResponse::descriptor(), standard::ErrorResponse::descriptor(),
       standard::ServerReflectionResponse::descriptor()});
  ServiceDescriptorProto& service = *file.add_service();
  service.set_name("ServerReflection");
  AddMethod(service, "ServerReflectionInfo", "ServerReflectionRequest", "ServerReflectionResponse")
      .set_client_streaming(true);
  return file;
}

std::unique_ptr<const DescriptorPool> MakePool() {
  auto pool = std::make_unique<DescriptorPool>();
  for (const FileDescriptorProto& file :
       {HealthFile(), ReflectionFile("v1"), ReflectionFile("v1alpha")}) {
    PENSTOCK_CHECK(pool->BuildFile(file) != nullptr);
  }
  return pool;
}

}  // namespace

const DescriptorPool& StandardServices() {
  static const std::unique_ptr<const DescriptorPool> kPool = MakePool();
  return *kPool;
}

}  // namespace penstock
