#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"

namespace penstock {

// The connections of a port that wait for their clients, by client. When the port is full, the
// longest idle connection of the client with the most of them makes room for a new one, so that no
// client can occupy the port with silent connections. Any thread.
class IdleConnections {
 public:
  // One connection. One thread at a time; the destructor removes it.
  class Member {
   public:
    // `close` asks the connection to close, and may be called on any thread, at most once for each
    // SetIdle(true).
    Member(std::shared_ptr<IdleConnections> all, std::string client, std::function<void()> close)
        : all_(std::move(all)), client_(std::move(client)), close_(std::move(close)) {}
    ~Member() { SetIdle(false); }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    void SetIdle(bool idle);

   private:
    friend class IdleConnections;
    const std::shared_ptr<IdleConnections> all_;
    const std::string client_;
    const std::function<void()> close_;
    bool listed_ = false;                 // guarded by all_->mutex_
    std::list<Member*>::iterator place_;  // guarded by all_->mutex_; valid if listed_
  };

  // Asks one connection to close. Returns false if none is idle.
  bool CloseOne() EXCLUDES(mutex_);
  size_t count() const EXCLUDES(mutex_);

 private:
  void Remove(Member& member) REQUIRES(mutex_);

  mutable Mutex mutex_;
  // The members of each client, the longest idle one first. No list is empty.
  std::unordered_map<std::string, std::list<Member*>> idle_ GUARDED_BY(mutex_);
};

}  // namespace penstock
