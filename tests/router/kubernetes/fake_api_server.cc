#include "tests/router/kubernetes/fake_api_server.h"

#include <nlohmann/json.hpp>
#include <thread>

#include "base/check.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr char kLeases[] = "/apis/coordination.k8s.io/v1/namespaces/serving/leases";
constexpr char kDeployments[] = "/apis/apps/v1/namespaces/serving/deployments/";

HttpResponse JsonResponse(int status, const std::string& json) {
  return {.status = status, .headers = {{"content-type", "application/json"}}, .body = json};
}

HttpResponse Failure(int status, const std::string& message) {
  const Json json = {{"kind", "Status"}, {"message", message}, {"code", status}};
  return JsonResponse(status, json.dump());
}

std::string HeaderOf(const HttpHead& head, const std::string& name) {
  for (const HttpHeader& header : head.headers) {
    if (header.name == name) return header.value;
  }
  return "";
}

}  // namespace

FakeApiServer::FakeApiServer(std::shared_ptr<TlsIdentity> tls, std::string token)
    : token_(std::move(token)) {
  auto server = HttpServer::Start({.tls = std::move(tls), .handlers = 4}, *this, edge_, clock_);
  PENSTOCK_CHECK(server.ok());
  server_ = *std::move(server);
}

void FakeApiServer::SetReplicas(const std::string& deployment, uint32_t replicas) {
  MutexLock lock(mutex_);
  replicas_[deployment] = replicas;
}

uint32_t FakeApiServer::replicas(const std::string& deployment) const {
  MutexLock lock(mutex_);
  const auto found = replicas_.find(deployment);
  return found == replicas_.end() ? 0 : found->second;
}

std::string FakeApiServer::holder() const {
  MutexLock lock(mutex_);
  return lease_.empty() ? "" : Json::parse(lease_)["holderIdentity"].get<std::string>();
}

std::vector<FakeApiServer::Change> FakeApiServer::changes() const {
  MutexLock lock(mutex_);
  return changes_;
}

void FakeApiServer::SetToken(const std::string& token) {
  MutexLock lock(mutex_);
  token_ = token;
}

HttpResponse FakeApiServer::Refuse(int status, const std::string& message) {
  return Failure(status, message);
}

void FakeApiServer::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  ++calls_;
  while (hold && !exchange->client_left()) std::this_thread::yield();
  exchange->Respond(Answer(request));
}

HttpResponse FakeApiServer::Answer(const HttpRequest& request) {
  const bool write = request.head.method != "GET";
  if (const int status = write && refuse_writes_with != 0 ? refuse_writes_with : refuse_with) {
    HttpResponse refused = Failure(status, "refused by the test");
    if (retry_after_s > 0) {
      refused.headers.push_back({"retry-after", std::to_string(retry_after_s)});
    }
    return refused;
  }
  MutexLock lock(mutex_);
  if (HeaderOf(request.head, "authorization") != "Bearer " + token_) {
    return Failure(401, "Unauthorized");
  }
  if (request.head.path.starts_with(kLeases)) return AnswerLease(request);
  if (request.head.path.starts_with(kDeployments)) return AnswerScale(request);
  return Failure(404, "not found: " + request.head.path);
}

std::string FakeApiServer::LeaseObject() const {
  return Json{{"kind", "Lease"},
              {"metadata", {{"name", "l"}, {"resourceVersion", std::to_string(version_)}}},
              {"spec", Json::parse(lease_)}}
      .dump();
}

HttpResponse FakeApiServer::AnswerLease(const HttpRequest& request) {
  if (request.head.method == "GET") {
    return lease_.empty() ? Failure(404, "leases \"l\" not found")
                          : JsonResponse(200, LeaseObject());
  }
  const Json body = Json::parse(request.body);
  const bool create = request.head.method == "POST";
  const bool stale =
      create ? !lease_.empty() : body["metadata"]["resourceVersion"] != std::to_string(version_);
  if (stale || conflict) return Failure(409, "the object has been modified");
  lease_ = body["spec"].dump();
  ++version_;
  return JsonResponse(create ? 201 : 200, LeaseObject());
}

HttpResponse FakeApiServer::AnswerScale(const HttpRequest& request) {
  std::string name = request.head.path.substr(sizeof(kDeployments) - 1);
  if (!name.ends_with("/scale")) return Failure(403, "only the scale may be used");
  name.resize(name.size() - sizeof("/scale") + 1);
  if (!replicas_.contains(name)) return Failure(404, "deployments \"" + name + "\" not found");
  if (request.head.method == "PATCH") {
    if (lock_p && name == "p") return Failure(403, "p is locked by the test");
    if (HeaderOf(request.head, "content-type") != "application/merge-patch+json") {
      return Failure(415, "not a merge patch");
    }
    replicas_[name] = Json::parse(request.body)["spec"]["replicas"].get<uint32_t>();
    const std::string holder =
        lease_.empty() ? "" : Json::parse(lease_)["holderIdentity"].get<std::string>();
    changes_.push_back({name, replicas_[name], holder});
  }
  const Json scale = {{"kind", "Scale"}, {"spec", {{"replicas", replicas_[name]}}}};
  return JsonResponse(200, scale.dump());
}

}  // namespace penstock
