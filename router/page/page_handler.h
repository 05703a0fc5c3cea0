#pragma once

#include "http/exchange.h"
#include "router/page/cluster_report.h"
#include "router/page/page_asset.h"
#include "router/request/key_ring.h"

namespace penstock {

struct PageHandlerArgs {
  HttpHandler& api;  // answers all other paths; api, report and keys outlive the handler
  const ClusterReport& report;
  KeyRing* keys = nullptr;  // null: the report needs no API key
};

// Serves the built-in page and passes all other paths to the API. The files contain no data and are
// public; the data comes from /cluster, which requires an API key if the API does.
class PageHandler final : public HttpHandler {
 public:
  explicit PageHandler(const PageHandlerArgs& args) : args_(args) {}

  std::vector<HttpHeader> AnswerHeaders(const HttpHead& head) override;
  std::optional<HttpResponse> Screen(const HttpHead& head) override;
  std::string AccountOf(const HttpHead& head) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpResponse Refuse(int status, const std::string& message) override;

 private:
  static const PageAsset* Find(std::string_view path);
  // True for the page's files and the report.
  static bool IsOwnPath(std::string_view path);

  const PageHandlerArgs args_;
};

}  // namespace penstock
