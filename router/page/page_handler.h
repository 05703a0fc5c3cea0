#pragma once

#include "http/exchange.h"
#include "router/page/cluster_report.h"
#include "router/page/page_asset.h"
#include "router/request/key_ring.h"

namespace penstock {

struct PageHandlerArgs {
  HttpHandler& api;  // answers all other paths; these outlive the handler
  const ClusterReport& report;
  KeyRing* keys = nullptr;  // null: whoever reaches the port may look
};

// The built-in page in front of the API. Its files are the same for everybody and say nothing;
// what they show comes from /cluster, which asks for a key like the API.
class PageHandler final : public HttpHandler {
 public:
  explicit PageHandler(const PageHandlerArgs& args) : args_(args) {}

  std::optional<HttpResponse> Screen(const HttpHead& head) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& message) override;

 private:
  static const PageAsset* Find(std::string_view path);

  const PageHandlerArgs args_;
};

}  // namespace penstock
