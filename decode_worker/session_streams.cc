#include "decode_worker/session_streams.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/batch_queue.h"
#include "base/mutex.h"

namespace penstock {
namespace {

// The size limit of a message, in tokens and alternatives: about 100 KiB.
constexpr size_t kMessageWeightMax = 4096;

absl::Status ShuttingDown() { return Unavailable("the decode worker is shutting down"); }

}  // namespace

struct SessionStreams::Shared {
  explicit Shared(Make given) : make(std::move(given)) {}

  const Make make;
  Mutex mutex;
  std::vector<std::weak_ptr<SessionStream>> streams GUARDED_BY(mutex);
  std::vector<std::shared_ptr<SessionStream>> stepped GUARDED_BY(mutex);  // have something to flush
  bool stopped GUARDED_BY(mutex) = false;
};

// gRPC calls the stream until OnDone; sessions share it until they have ended. Locks: its own
// before Shared's, and no session is called under either.
class SessionStream final : public grpc::ServerBidiReactor<v1::DecodeCommands, v1::DecodeEvents>,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  explicit SessionStream(SessionStreams::Shared& shared) : shared_(shared) {}

  void Open() {
    self_ = shared_from_this();
    StartRead(&commands_);
  }

  void Write(uint64_t number, v1::DecodeEvent event, Sending when) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!IsOpen(number)) return;
    event.set_number(number);
    const auto weight = static_cast<size_t>(1 + event.first().tokens_size());
    *queue_.Add(weight).add_events() = std::move(event);
    Schedule(when);
  }

  void WriteToken(uint64_t number, const v1::TokenOut& token) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!IsOpen(number)) return;
    const auto weight = static_cast<size_t>(1 + token.top_size());
    v1::SessionToken& said = *queue_.Add(weight).add_tokens();
    said.set_number(number);
    said.mutable_token()->CopyFrom(token);  // into what an earlier one has allocated
    Schedule(Sending::kWithStep);
  }

  bool End(uint64_t number, const absl::Status& status, Sending when) EXCLUDES(mutex_) {
    std::shared_ptr<StreamedSession> ended;  // destroyed without the lock
    MutexLock lock(mutex_);
    const auto found = sessions_.find(number);
    if (found == sessions_.end()) return false;
    const bool heard = !found->second.cancelled;
    ended = std::move(found->second.session);
    sessions_.erase(found);
    if (!heard) return true;
    v1::SessionEnd& end = *queue_.Add(1).add_ends();
    end.set_number(number);
    end.set_code(static_cast<uint32_t>(status.code()));
    end.set_message(Message(status));
    Schedule(when);
    return true;
  }

  void Flush() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    stepping_ = false;
    WriteNext();
  }

  // Cancels open sessions and ends the stream after its buffered messages.
  void CloseWith(const absl::Status& status) EXCLUDES(mutex_) {
    std::vector<uint64_t> open;
    {
      MutexLock lock(mutex_);
      if (std::exchange(closing_, true)) return;
      status_ = {static_cast<grpc::StatusCode>(status.code()), Message(status)};
      for (const auto& [number, entry] : sessions_) open.push_back(number);
      WriteNext();
      FinishWhenSent();
    }
    for (const uint64_t number : open) {
      CancelSession(number, status.ok() ? absl::CancelledError("the router is gone") : status);
    }
  }

  void OnReadDone(bool ok) override {
    // The stream is broken, or the router has half-closed it: it does not read any more either.
    if (!ok) return CloseWith(absl::OkStatus());
    for (const v1::DecodeCommand& command : commands_.commands()) {
      if (closing()) break;  // The stream's status tells the router.
      Take(command);
    }
    StartRead(&commands_);
  }

  void OnWriteDone(bool ok) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    queue_.OnSent();
    if (!ok) queue_.DropWaiting();  // The router is gone; OnReadDone is called, too.
    if (!stepping_ || closing_) WriteNext();
    FinishWhenSent();
  }

  void OnDone() override {
    const std::shared_ptr<SessionStream> last = std::move(self_);  // may delete this
  }

 private:
  struct Entry {
    std::shared_ptr<StreamedSession> session;
    bool begun = false;
    std::optional<absl::Status> cancelled = {};  // set while a cancelled session has not ended
  };

  void Take(const v1::DecodeCommand& command) EXCLUDES(mutex_) {
    switch (command.command_case()) {
      case v1::DecodeCommand::kOpen:
        return OpenSession(command);
      case v1::DecodeCommand::kCancel:
        return CancelSession(command.number(), absl::CancelledError("the request was cancelled"));
      case v1::DecodeCommand::COMMAND_NOT_SET:
        return CloseWith(
            absl::InvalidArgumentError("unknown command; upgrade workers before routers"));
    }
  }

  void OpenSession(const v1::DecodeCommand& command) EXCLUDES(mutex_) {
    const uint64_t number = command.number();
    const std::shared_ptr<StreamedSession> session = Add(number);
    if (session == nullptr) {
      return CloseWith(
          absl::InvalidArgumentError("the number of a session was used before; numbers must grow"));
    }
    session->Begin(command.open());
    absl::Status cancelled;
    {
      MutexLock lock(mutex_);
      const auto found = sessions_.find(number);
      if (found == sessions_.end()) return;
      found->second.begun = true;
      if (!found->second.cancelled) return;
      cancelled = *found->second.cancelled;
    }
    session->OnCancelled(cancelled);
  }

  std::shared_ptr<StreamedSession> Add(uint64_t number) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (number <= last_number_) return nullptr;
    last_number_ = number;
    std::shared_ptr<StreamedSession> session =
        shared_.make(SessionWriter(shared_from_this(), number));
    Entry entry{.session = session};
    if (closing_) entry.cancelled = absl::UnavailableError("the stream has ended");
    sessions_.emplace(number, std::move(entry));
    return session;
  }

  void CancelSession(uint64_t number, const absl::Status& why) EXCLUDES(mutex_) {
    std::shared_ptr<StreamedSession> session;
    {
      MutexLock lock(mutex_);
      const auto found = sessions_.find(number);
      if (found == sessions_.end() || found->second.cancelled) return;
      found->second.cancelled = why;
      if (!found->second.begun) return;  // OpenSession tells the session.
      session = found->second.session;
    }
    session->OnCancelled(why);
  }

  bool closing() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return closing_;
  }

  bool IsOpen(uint64_t number) const REQUIRES(mutex_) {
    if (closing_) return false;
    const auto found = sessions_.find(number);
    return found != sessions_.end() && !found->second.cancelled;
  }

  // Sends the message that was just added, now or with the step.
  void Schedule(Sending when) REQUIRES(mutex_) {
    if (when == Sending::kNow) {
      stepping_ = false;  // Earlier messages of the step go along.
      return WriteNext();
    }
    if (std::exchange(stepping_, true)) return;
    MutexLock lock(shared_.mutex);
    shared_.stepped.push_back(shared_from_this());
  }

  void WriteNext() REQUIRES(mutex_) {
    if (!finished_ && !queue_.sending() && queue_.waiting()) StartWrite(&queue_.Send());
  }

  void FinishWhenSent() REQUIRES(mutex_) {
    if (!closing_ || finished_ || !queue_.empty()) return;
    finished_ = true;
    Finish(status_);
  }

  SessionStreams::Shared& shared_;
  v1::DecodeCommands commands_;  // being read

  Mutex mutex_;
  std::unordered_map<uint64_t, Entry> sessions_ GUARDED_BY(mutex_);  // open ones
  uint64_t last_number_ GUARDED_BY(mutex_) = 0;
  BatchQueue<v1::DecodeEvents> queue_ GUARDED_BY(mutex_){kMessageWeightMax};
  bool stepping_ GUARDED_BY(mutex_) = false;  // buffered messages wait for FlushStep
  bool closing_ GUARDED_BY(mutex_) = false;   // no message is added any more
  bool finished_ GUARDED_BY(mutex_) = false;  // Finish was called
  grpc::Status status_ GUARDED_BY(mutex_);
  std::shared_ptr<SessionStream> self_;  // gRPC's share
};

void SessionWriter::Write(v1::DecodeEvent event, Sending when) const {
  stream_->Write(number_, std::move(event), when);
}
void SessionWriter::WriteToken(const v1::TokenOut& token) const {
  stream_->WriteToken(number_, token);
}
bool SessionWriter::End(const absl::Status& status, Sending when) const {
  return stream_->End(number_, status, when);
}

SessionStreams::SessionStreams(Make make) : shared_(std::make_unique<Shared>(std::move(make))) {}
SessionStreams::~SessionStreams() = default;

grpc::ServerBidiReactor<v1::DecodeCommands, v1::DecodeEvents>* SessionStreams::Serve() {
  const auto stream = std::make_shared<SessionStream>(*shared_);
  bool stopped = false;
  {
    MutexLock lock(shared_->mutex);
    stopped = shared_->stopped;
    std::erase_if(shared_->streams, [](const auto& known) { return known.expired(); });
    shared_->streams.push_back(stream);
  }
  stream->Open();
  if (stopped) stream->CloseWith(ShuttingDown());
  return stream.get();
}

void SessionStreams::FlushStep() {
  std::vector<std::shared_ptr<SessionStream>> stepped;
  {
    MutexLock lock(shared_->mutex);
    stepped.swap(shared_->stepped);
  }
  for (const auto& stream : stepped) stream->Flush();
}

void SessionStreams::Stop() {
  std::vector<std::weak_ptr<SessionStream>> streams;
  {
    MutexLock lock(shared_->mutex);
    shared_->stopped = true;
    streams = shared_->streams;
  }
  for (const auto& known : streams) {
    if (const std::shared_ptr<SessionStream> stream = known.lock())
      stream->CloseWith(ShuttingDown());
  }
}

}  // namespace penstock
