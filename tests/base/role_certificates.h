#pragma once

#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/rpc/tls.h"
#include "lab/fake/certificates.h"
#include "lab/fake/temp_folder.h"

namespace penstock {

// Members of one cluster, whose certificates name roles.
class RoleCertificates {
 public:
  std::shared_ptr<TlsIdentity> Identity(const std::vector<std::string>& roles) {
    const std::string folder = folder_.path() + "/" + std::to_string(++count_);
    std::filesystem::create_directory(folder);
    WriteIdentity(folder, ca_, ca_.IssueFor(roles));
    auto identity = TlsIdentity::Open(FilesIn(folder), TlsUse::kMember);
    PENSTOCK_CHECK(identity.ok(), "(an identity did not open)");
    return *identity;
  }
  std::shared_ptr<grpc::Channel> Channel(const std::string& endpoint,
                                         const std::vector<std::string>& roles) {
    return grpc::CreateChannel(endpoint, ChannelCredentialsOf(Identity(roles)));
  }

 private:
  const TempFolder folder_;
  const TestCa ca_{"cluster CA"};
  int count_ = 0;
};

}  // namespace penstock
