// Open files beside the bytes of a message: SCM_RIGHTS. For the two messages.cc alone.
#pragma once
#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <vector>

namespace prefixd::os {

// Room for the control data of one sendmsg() or recvmsg(); outlives the call.
class Rights {
 public:
  static constexpr size_t kMostFiles = 8;
  // Puts files into a message that is sent. Requires: at most kMostFiles.
  void Attach(std::span<const int> files, msghdr* message);
  // Lets a message that is received bring so many files. Without room the kernel drops them.
  void MakeRoom(size_t files, msghdr* message);
  // Appends the files that a message brought.
  static void Take(msghdr* message, std::vector<int>* files);

 private:
  alignas(cmsghdr) char control_[CMSG_SPACE(kMostFiles * sizeof(int))] = {};
};

}  // namespace prefixd::os
