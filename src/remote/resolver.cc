#include "remote/resolver.h"

#include <netdb.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace prefixd::remote {
namespace {

std::vector<SocketAddress> Look(const std::string& host, uint16_t port, int flags,
                                std::string* why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  std::vector<SocketAddress> addresses;
  if (error != 0) {
    *why = absl::StrCat("there is no address of ", host, ": ", gai_strerror(error));
    return addresses;
  }
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress address;
    std::memcpy(&address.bytes, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  return addresses;
}

}  // namespace

Resolution::Resolution() = default;

bool Resolution::Take(std::vector<SocketAddress>* addresses, std::string* why) const {
  const base::MutexLock lock(mutex_);
  if (!known_) return false;
  *addresses = addresses_;
  *why = why_;
  return true;
}

void Resolution::Set(std::vector<SocketAddress> addresses, std::string why) {
  const base::MutexLock lock(mutex_);
  known_ = true;
  addresses_ = std::move(addresses);
  why_ = std::move(why);
  done_.Set();
}

std::shared_ptr<Resolution> Resolver::Ask(const std::string& host, uint16_t port) {
  auto question = std::make_shared<Resolution>();
  std::string why;
  std::vector<SocketAddress> addresses = Look(host, port, AI_NUMERICHOST, &why);
  if (!addresses.empty()) {
    question->Set(std::move(addresses), "");
    return question;
  }
  const std::string name = absl::StrCat(host, ":", port);
  const base::MutexLock lock(mutex_);
  std::shared_ptr<Resolution>& asked = asked_[name];
  if (asked != nullptr) return asked;
  asked = question;
  const bool posted = threads_.Post([this, host, port, name, question] {
    std::string error;
    std::vector<SocketAddress> found = Look(host, port, 0, &error);
    {
      const base::MutexLock done(mutex_);
      asked_.erase(name);
    }
    question->Set(std::move(found), std::move(error));
  });
  if (!posted) {
    asked_.erase(name);
    question->Set({}, "no thread can be started to look up a name");
  }
  return question;
}

}  // namespace prefixd::remote
