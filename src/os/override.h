// Calls of the C library that the whole program makes through a function of ours, libraries too.
//
//   extern "C" ssize_t PREFIXD_OVERRIDE(recvmsg)(int fd, msghdr* message, int flags) {
//     static const auto receive = PREFIXD_ORIGINAL(recvmsg);
//     ...
//   }
//   PREFIXD_OVERRIDDEN(recvmsg)
//
// Linux: the program's symbol is found before libc's. Darwin: libraries find a symbol where they
// were linked to it, so the loader is told, by a table of the program, to put ours in its place;
// what the program's own files call is not replaced.
#pragma once

#if defined(__APPLE__)
#define PREFIXD_OVERRIDE(name) prefixd_##name
#define PREFIXD_ORIGINAL(name) (&::name)
#define PREFIXD_OVERRIDDEN(name)                                                 \
  __attribute__((used, section("__DATA,__interpose"))) static const struct {     \
    const void *ours, *original;                                                 \
  } prefixd_overridden_##name = {reinterpret_cast<const void*>(&prefixd_##name), \
                                 reinterpret_cast<const void*>(&::name)};
#else
#include <dlfcn.h>
#define PREFIXD_OVERRIDE(name) __attribute__((visibility("default"))) name
#define PREFIXD_ORIGINAL(name) reinterpret_cast<decltype(&::name)>(::dlsym(RTLD_NEXT, #name))
#define PREFIXD_OVERRIDDEN(name)
#endif
