#include "http/connection.h"

#include <sys/epoll.h>

#include <utility>

namespace penstock {
namespace {

constexpr size_t kProduceBytes = 64 << 10;
constexpr size_t kKeptCapacity = 16 << 10;
// The bytes that a refused client may still send before its connection is reset.
constexpr size_t kMaxDrained = 1 << 20;

}  // namespace

Connection::Connection(Args args)
    : loop_(args.loop),
      context_(args.context),
      socket_(std::move(args.socket)),
      on_closed_(std::move(args.on_closed)),
      opened_(args.context.clock.Now()),
      progress_(opened_) {}

Connection::~Connection() { Close(); }

void Connection::Open(std::unique_ptr<Protocol> protocol, std::function<void(bool)> on_idle) {
  protocol_ = std::move(protocol);
  on_idle_ = std::move(on_idle);
  interest_ = EPOLLIN | EPOLLRDHUP;
  ReportIdle();
  if (!loop_.Add(socket_->fd(), interest_, shared_from_this()).ok()) Close();
}

void Connection::Close() {
  if (closed_) return;
  closed_ = true;
  if (protocol_ != nullptr) protocol_->OnClosed();
  loop_.Remove(socket_->fd());
  socket_.reset();
  on_idle_ = nullptr;
  if (on_closed_) on_closed_();
}

void Connection::CloseIfIdle() {
  if (!closed_ && idle_) Close();
}

void Connection::OnWake() {
  if (!closed_ && !lingering_ && !blocked_) Pump();
}

void Connection::OnReady(uint32_t events) {
  if (closed_) return;
  if ((events & (EPOLLERR | EPOLLHUP)) != 0) return Close();
  if (lingering_) return Drain();
  if ((events & EPOLLOUT) != 0) blocked_ = false;
  if ((events & EPOLLIN) != 0 && socket_->write_waits_for_read()) blocked_ = false;
  // A client that closes its sending half while it waits for an answer has left. Its last request
  // may have just arrived, so read first.
  const uint32_t readable = socket_->read_waits_for_write() ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if ((events & readable) != 0 && protocol_->wants_input()) ReadSome();
  if (closed_ || lingering_) return;
  if ((events & EPOLLRDHUP) != 0 && !protocol_->wants_input()) return Close();
  if (!blocked_) Pump();
}

void Connection::ReadSome() {
  const Socket::Result result = socket_->Read(loop_.scratch());
  switch (result.kind) {
    case Socket::Result::Kind::kBytes:
      Feed({loop_.scratch().data(), result.bytes});
      return;
    case Socket::Result::Kind::kWouldBlock:
      return UpdateInterest();
    case Socket::Result::Kind::kBroken:
      if (!socket_->established()) context_.metrics.OnLimit(EdgeLimit::kHandshake);
      return Close();
    case Socket::Result::Kind::kEnd:
      return Close();
  }
}

bool Connection::Feed(std::string_view bytes) {
  protocol_->TakeInput(bytes);
  unread_ = bytes;
  return !closed_;
}

void Connection::Pump() {
  while (WriteSome()) {
    if (protocol_->finished()) return FinishWriting();
    if (!unread_.empty() && protocol_->wants_input()) {
      const std::string bytes = std::move(unread_);
      unread_.clear();
      if (!Feed(bytes)) return;
      continue;
    }
    protocol_->Produce(out_, kProduceBytes);
    if (out_.empty() && !protocol_->finished()) break;
  }
  if (!closed_ && !lingering_) UpdateInterest();
}

bool Connection::WriteSome() {
  while (sent_ < out_.size()) {
    const Socket::Result result = socket_->Write(std::string_view(out_).substr(sent_));
    if (result.kind == Socket::Result::Kind::kWouldBlock) {
      blocked_ = true;
      return false;
    }
    if (result.kind != Socket::Result::Kind::kBytes) {
      Close();
      return false;
    }
    sent_ += result.bytes;
    progress_ = loop_.now();
  }
  sent_ = 0;
  out_.clear();
  if (out_.capacity() > kKeptCapacity) out_.shrink_to_fit();
  progress_ = loop_.now();
  return true;
}

void Connection::FinishWriting() {
  // Closing a socket with unread input resets the connection, and the client might never see its
  // answer. Therefore linger first.
  lingering_ = true;
  linger_until_ = loop_.now() + context_.times.linger;
  socket_->FinishWriting();
  UpdateInterest();
}

void Connection::Drain() {
  const Socket::Result result = socket_->Read(loop_.scratch());
  if (result.kind == Socket::Result::Kind::kWouldBlock) return;
  drained_ += result.bytes;
  if (result.kind != Socket::Result::Kind::kBytes || drained_ > kMaxDrained) Close();
}

void Connection::ReportIdle() {
  const bool idle = lingering_ || protocol_->idle();
  if (idle == std::exchange(idle_, idle)) return;
  if (on_idle_) on_idle_(idle);
}

void Connection::UpdateInterest() {
  ReportIdle();
  uint32_t interest = 0;
  const bool wants_input = lingering_ || protocol_->wants_input();
  if (wants_input) interest |= EPOLLIN | EPOLLRDHUP;
  // Reports a client that disconnects even without EPOLLIN.
  if (!wants_input) interest |= EPOLLRDHUP;
  if (wants_input && socket_->read_waits_for_write()) interest |= EPOLLOUT;
  if (blocked_ && !lingering_) interest |= socket_->write_waits_for_read() ? EPOLLIN : EPOLLOUT;
  if (interest == interest_) return;
  interest_ = interest;
  loop_.Modify(socket_->fd(), interest);
}

void Connection::OnTick(TimePoint now) {
  if (closed_) return;
  if (lingering_) {
    if (now >= linger_until_) Close();
    return;
  }
  if (!socket_->established() && now - opened_ >= context_.times.handshake) {
    context_.metrics.OnLimit(EdgeLimit::kHandshake);
    return Close();
  }
  if (blocked_ && now - progress_ >= context_.times.stall) {
    context_.metrics.OnLimit(EdgeLimit::kStalled);
    return Close();
  }
  const bool closing = context_.closing;
  if (closing && protocol_->OnClosing() && sent_ == out_.size()) return Close();
  if (blocked_) return;
  const bool late = now >= protocol_->deadline();
  if (late) protocol_->OnDeadline();
  if (late || closing) Pump();
}

}  // namespace penstock
