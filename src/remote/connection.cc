#include "remote/connection.h"

#include <poll.h>

#include "base/status.h"

namespace prefixd::remote {
std::string InWords(const std::string& error, const std::string& user) {
  const std::string who = user.empty() ? "the default user" : absl::StrCat("user ", user);
  if (error.starts_with("NOAUTH") ||
      error.find("without any password configured") != std::string::npos) {
    return error.starts_with("NOAUTH")
               ? "it asks for a password: set --remote-user and --remote-password-file"
               : "it has no password, but one is set: drop --remote-password-file, or set one "
                 "there";
  }
  if (error.starts_with("WRONGPASS")) {
    return absl::StrCat("it refuses ", who,
                        " with this password: check --remote-user and "
                        "--remote-password-file (",
                        error, ")");
  }
  if (error.starts_with("NOPERM"))
    return absl::StrCat("its ACL does not allow this to ", who, " (", error, ")");
  if (error.starts_with("OOM"))
    return "it has no room: maxmemory is reached and nothing may be evicted";
  if (error.starts_with("LOADING")) return "it is reading its data from disk";
  if (error.starts_with("CLUSTERDOWN"))
    return absl::StrCat("its cluster does not serve (", error, ")");
  if (error.starts_with("MISCONF"))
    return absl::StrCat("it takes no writes: it cannot save to disk (", error, ")");
  if (error.starts_with("READONLY")) return "it is a replica, which takes no writes";
  return error;
}

Connection::Connection(const Endpoint& address, const Login& login, Resolver* resolver)
    : address_(address),
      user_(login.user),
      transport_(address, resolver->Ask(address.host, address.port), login.tls) {
  if (!login.password.empty()) {
    if (login.user.empty()) {
      out_.Call({"AUTH", login.password});
    } else {
      out_.Call({"AUTH", login.user, login.password});
    }
    greeting_.push_back("AUTH");
  }
  out_.Call({"HELLO", "3"});
  greeting_.push_back("HELLO");
  out_.Call({"CLIENT", "SETNAME", "prefixd"});
  greeting_.push_back("CLIENT");
  for (size_t i = 0; i < greeting_.size(); ++i) reader_.Expect({});
}

void Connection::Send(const Commands& command, std::span<const Runs> into) {
  out_.Append(command);
  reader_.Expect(into);
  ++unanswered_;
}

short Connection::events() const {
  short events = transport_.events();
  if (transport_.connected() && sent_ < out_.bytes()) events |= POLLOUT;
  return events;
}

absl::Status Connection::Advance() {
  if (!transport_.connected()) {
    if (const absl::Status status = transport_.Connect(); !status.ok()) return Named(status);
    if (!transport_.connected()) return absl::OkStatus();
  }
  if (const absl::Status status = SendRest(); !status.ok()) return Named(status);
  return ReceiveAll();
}

absl::Status Connection::SendRest() {
  std::array<iovec, 256> places;
  while (sent_ < out_.bytes()) {
    const size_t count = out_.Rest(sent_, places);
    PREFIXD_ASSIGN_OR_RETURN(const size_t sent, transport_.Send(std::span(places).first(count)));
    if (sent == 0) return absl::OkStatus();
    sent_ += sent;
  }
  if (sent_ > 0) out_.Clear();
  sent_ = 0;
  return absl::OkStatus();
}

absl::Status Connection::ReceiveAll() {
  std::array<iovec, ReplyReader::kMostPlaces> places;
  for (;;) {
    const size_t count = reader_.Places(&places);
    size_t wanted = 0;
    for (size_t i = 0; i < count; ++i) wanted += places[i].iov_len;
    const absl::StatusOr<size_t> received = transport_.Receive(std::span(places).first(count));
    if (!received.ok()) return Named(received.status());
    if (*received == 0) return absl::OkStatus();
    reader_.Arrived(*received);
    Reply reply;
    ReplyReader::State state = ReplyReader::State::kMore;
    while (reader_.expected() > 0 && (state = reader_.Next(&reply)) == ReplyReader::State::kReply) {
      if (greeting_.empty()) {
        replies_.push_back(std::move(reply));
      } else {
        PREFIXD_RETURN_IF_ERROR(TakeGreeting(reply));
      }
    }
    if (state == ReplyReader::State::kBroken) {
      return Named(absl::UnavailableError(
          absl::StrCat("it does not speak Redis' protocol: ", reader_.why_broken())));
    }
    // All that was asked for is here, or all that came.
    if (reader_.expected() == 0 || *received < wanted) return absl::OkStatus();
  }
}

absl::Status Connection::TakeGreeting(const Reply& reply) {
  const std::string command = greeting_.front();
  greeting_.pop_front();
  if (!reply.error()) return absl::OkStatus();
  const bool no_login = reply.text.starts_with("NOAUTH") || reply.text.starts_with("LOADING");
  if (command == "AUTH" || no_login)
    return Named(absl::UnavailableError(InWords(reply.text, user_)));
  return absl::OkStatus();  // an older server: RESP2, no name
}

bool Connection::TakeReply(Reply* reply) {
  if (replies_.empty()) return false;
  *reply = std::move(replies_.front());
  replies_.pop_front();
  --unanswered_;
  return true;
}

bool Connection::StillGood() {
  if (!transport_.connected() || unanswered_ > 0 || reader_.expected() > 0) return false;
  pollfd ready{.fd = transport_.fd(), .events = POLLIN, .revents = 0};
  return poll(&ready, 1, 0) == 0;
}

absl::Status Connection::Named(const absl::Status& status) const {
  return absl::UnavailableError(
      absl::StrCat("redis at ", TextOf(address_), ": ", std::string(status.message())));
}

}  // namespace prefixd::remote
