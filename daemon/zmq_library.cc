#include "daemon/zmq_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace prefixd::daemon {
namespace {

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<ZmqLibrary> LoadOnce() {
  void* const library = ::dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "events-publish: ZeroMQ is not installed (Debian: apt install libzmq5): ", ::dlerror()));
  }
  ZmqLibrary zmq{};
  const bool all =
      Find(library, "zmq_ctx_new", &zmq.ctx_new) && Find(library, "zmq_ctx_term", &zmq.ctx_term) &&
      Find(library, "zmq_socket", &zmq.socket) && Find(library, "zmq_close", &zmq.close) &&
      Find(library, "zmq_setsockopt", &zmq.setsockopt) &&
      Find(library, "zmq_getsockopt", &zmq.getsockopt) && Find(library, "zmq_bind", &zmq.bind) &&
      Find(library, "zmq_connect", &zmq.connect) && Find(library, "zmq_send", &zmq.send) &&
      Find(library, "zmq_recv", &zmq.recv) && Find(library, "zmq_poll", &zmq.poll) &&
      Find(library, "zmq_errno", &zmq.last_error) && Find(library, "zmq_strerror", &zmq.strerror);
  if (all) return zmq;
  return absl::FailedPreconditionError("events-publish: libzmq.so.5 lacks functions of libzmq 4");
}

}  // namespace

absl::StatusOr<const ZmqLibrary*> ZmqLibrary::Load() {
  static const absl::StatusOr<ZmqLibrary>* const loaded =
      new absl::StatusOr<ZmqLibrary>(LoadOnce());
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

}  // namespace prefixd::daemon
