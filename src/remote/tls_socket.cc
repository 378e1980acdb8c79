#include "remote/tls_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

#include "openssl/bio.h"
#include "openssl/err.h"

namespace prefixd::remote {
namespace {

int SocketOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

bool MayTryAgain(ssize_t count) {
  return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

int Write(BIO* bio, const char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = send(SocketOf(bio), data, static_cast<size_t>(bytes), MSG_NOSIGNAL);
  if (MayTryAgain(count)) BIO_set_retry_write(bio);
  return static_cast<int>(count);
}

int Read(BIO* bio, char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = recv(SocketOf(bio), data, static_cast<size_t>(bytes), 0);
  if (MayTryAgain(count)) BIO_set_retry_read(bio);
  return static_cast<int>(count);
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* Method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "prefixd socket");
    if (made == nullptr) return made;
    BIO_meth_set_write(made, Write);
    BIO_meth_set_read(made, Read);
    BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  return method;
}

}  // namespace

bio_st* NewSocketBio(int socket) {
  if (Method() == nullptr) return nullptr;
  BIO* const bio = BIO_new(Method());
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  return bio;
}

std::string TakeTlsError(const std::string& otherwise) {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (error == 0) return otherwise;
  const char* const reason = ERR_reason_error_string(error);
  return reason == nullptr ? otherwise : reason;
}

}  // namespace prefixd::remote
