// Whether the client of a request is still there. httplib tells a handler the client's address but
// not its socket, and a request that nobody waits for any more would keep a slot until its end.
//
// Belongs to the thread that handles the request: the socket stays open meanwhile.
#pragma once
#include <string>

namespace prefixd::llama {

class ClientSocket {
 public:
  ClientSocket(std::string address, int port) : address_(std::move(address)), port_(port) {}

  // Returns true once the client has closed the connection or cannot be reached. False where its
  // socket is not found among this process's.
  bool Gone();

 private:
  int Find() const;  // -1: not found

  const std::string address_;
  const int port_;
  bool searched_ = false;
  int socket_ = -1;
};

}  // namespace prefixd::llama
