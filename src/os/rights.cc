#include "os/rights.h"

#include <algorithm>
#include <cstring>

namespace prefixd::os {
namespace {

using Length = decltype(msghdr::msg_controllen);  // size_t or socklen_t

}  // namespace

void Rights::Attach(std::span<const int> files, msghdr* message) {
  if (files.empty()) return;
  message->msg_control = control_;
  message->msg_controllen = static_cast<Length>(CMSG_SPACE(files.size_bytes()));
  cmsghdr* const rights = CMSG_FIRSTHDR(message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = static_cast<Length>(CMSG_LEN(files.size_bytes()));
  std::memcpy(CMSG_DATA(rights), files.data(), files.size_bytes());
}

void Rights::MakeRoom(size_t files, msghdr* message) {
  if (files == 0) return;
  message->msg_control = control_;
  message->msg_controllen =
      static_cast<Length>(CMSG_SPACE(std::min(files, kMostFiles) * sizeof(int)));
}

void Rights::Take(msghdr* message, std::vector<int>* files) {
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
      files->push_back(fd);
    }
  }
}

}  // namespace prefixd::os
