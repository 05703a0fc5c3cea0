#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "http/server/http_server.h"
#include "tests/http/edge_handler.h"

namespace penstock {

// A running HTTP server on loopback, in front of an EdgeHandler.
class EdgeFixture {
 protected:
  void Start(HttpServerOptions options = {}) {
    auto started = HttpServer::Start(options, handler_, metrics_, clock_);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  const std::string& endpoint() const { return server_->endpoint(); }

  SteadyClock clock_;
  EdgeHandler handler_;
  MetricsRegistry registry_;
  EdgeMetrics metrics_{registry_, "http"};
  std::unique_ptr<HttpServer> server_;
};

}  // namespace penstock
