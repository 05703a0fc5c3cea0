#pragma once

#include <memory>
#include <utility>

#include "lab/world/machine/scheduler.h"
#include "proto/inference.pb.h"
#include "router/session/session_driver.h"

namespace penstock::world {

// A client of the world's router, with one request.
class RouterClient : public ClientSink {
 public:
  virtual const v1::GenerateRequest& request() const = 0;
  virtual TimePoint deadline() { return TimePoint::max(); }  // fixed at the arrival
  // The connection breaks: what has arrived stays, and nothing more comes.
  virtual void OnRouterDeath() = 0;
  // Before and after the router starts the session or refuses the request.
  virtual void OnStarting() {}
  virtual void OnStarted() {}

  void OnAdmitted(const std::shared_ptr<SessionDriver>& driver) { driver_ = driver; }
  const std::shared_ptr<SessionDriver>& driver() const { return driver_; }

 protected:
  // After the end of the answer, but not within the driver that calls.
  void LetDriverGo() {
    Scheduler& scheduler = *Scheduler::current();
    scheduler.After(Duration::zero(), scheduler.process(), [driver = std::move(driver_)] {});
  }
  // The driver is of a process that has died: nothing of it is destroyed.
  void AbandonDriver() {
    if (driver_ != nullptr) new std::shared_ptr<SessionDriver>(std::move(driver_));
  }

 private:
  std::shared_ptr<SessionDriver> driver_;  // until the end, as a public port's call has it
};

}  // namespace penstock::world
