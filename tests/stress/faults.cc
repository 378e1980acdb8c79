// Preloaded into prefixd: file calls fail, the clock jumps and threads are refused as a control
// block, a mapped file that the story's teller writes, says.
//
//   STRESS_CONTROL   path of the control block, as Control below; 4,096 bytes
//   STRESS_FOLDERS   the folders whose files are meant, absolute, joined by ':'
//
// Only calls on files of these folders fail: opened by path, or through a descriptor that was.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string_view>

namespace {

// As tests/stress/control.py has them.
enum Kind : uint32_t {
  kOpen,
  kRead,
  kWrite,
  kShort,
  kSync,
  kRename,
  kResize,
  kUnlink,
  kFolder,
  kMap,
  kLock,
  kThread,
  kKinds
};
struct Control {
  std::atomic<uint32_t> kinds;   // bits: which calls fail
  std::atomic<int32_t> error;    // errno
  std::atomic<int64_t> after;    // so many of them succeed first
  std::atomic<int64_t> count;    // then so many fail
  std::atomic<int64_t> clock_s;  // the wall clock is so much ahead
  std::atomic<uint64_t> loaded;  // daemons that hear this block: without, all would pass
  std::array<std::atomic<uint64_t>, kKinds> injected;
};

Control* control = nullptr;
std::string_view folders;
std::array<std::atomic<bool>, 65536> meant;  // descriptors
// Of them those whose reads succeed: RocksDB 7.8, as Debian builds it, ends the process by an
// assertion when a file that it ingests cannot be read (GetIngestedFileInfo: SeekToLast, then key).
std::array<std::atomic<bool>, 65536> readable;

// The daemon's calls come here: hidden symbols would be loaded too, and never be called.
bool IsCalled() {
  Dl_info called{}, own{};
  return ::dladdr(::dlsym(RTLD_DEFAULT, "pwrite64"), &called) != 0 &&
         ::dladdr(reinterpret_cast<void*>(&IsCalled), &own) != 0 &&
         called.dli_fbase == own.dli_fbase;
}

// Before any thread starts.
__attribute__((constructor)) void Begin() {
  const char* const path = ::getenv("STRESS_CONTROL");
  const char* const where = ::getenv("STRESS_FOLDERS");
  if (path == nullptr || where == nullptr) return;
  folders = where;
  const auto next = reinterpret_cast<int (*)(const char*, int, ...)>(::dlsym(RTLD_NEXT, "open"));
  const int file = next(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return;
  control = static_cast<Control*>(memory);
  if (IsCalled()) ++control->loaded;
}

bool IsMeant(std::string_view path) {
  for (std::string_view rest = folders; !rest.empty();) {
    const size_t end = rest.find(':');
    const std::string_view folder = rest.substr(0, end);
    if (!folder.empty() && path.starts_with(folder)) return true;
    rest = end == rest.npos ? std::string_view() : rest.substr(end + 1);
  }
  return false;
}
bool IsMeant(int file) {
  return file >= 0 && static_cast<size_t>(file) < meant.size() && meant[file].load();
}
bool MayNotBeRead(int file) { return IsMeant(file) && !readable[static_cast<size_t>(file)]; }
void Mean(int file, bool is, bool read = false) {
  if (file < 0 || static_cast<size_t>(file) >= meant.size()) return;
  meant[file] = is;
  readable[file] = read;
}

// Whether this call fails now; errno is set.
bool Fails(Kind kind) {
  if (control == nullptr || (control->kinds & (1U << kind)) == 0) return false;
  if (control->after.load() > 0 && control->after.fetch_sub(1) > 0) return false;
  if (control->count.load() <= 0 || control->count.fetch_sub(1) <= 0) return false;
  ++control->injected[kind];
  errno = control->error;
  return true;
}

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static const auto next = Next<decltype(&::name)>(#name)

int OpenAt(int folder, const char* path, int flags, mode_t mode) {
  NEXT(openat);
  const bool is =
      path != nullptr && (IsMeant(std::string_view(path)) || (path[0] != '/' && IsMeant(folder)));
  if (is && Fails(kOpen)) return -1;
  const int file = next(folder, path, flags, mode);
  Mean(file, is, is && std::string_view(path).find("/incoming/") != std::string_view::npos);
  return file;
}

mode_t ModeOf(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

timespec Moved(timespec now) {
  if (control != nullptr) now.tv_sec += control->clock_s;
  return now;
}

}  // namespace

// NOLINTBEGIN: names and types are libc's.
extern "C" {

#define OPEN(name)                              \
  int name(const char* path, int flags, ...) {  \
    va_list list;                               \
    va_start(list, flags);                      \
    const mode_t mode = ModeOf(flags, list);    \
    va_end(list);                               \
    return OpenAt(AT_FDCWD, path, flags, mode); \
  }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                       \
  int name(int folder, const char* path, int flags, ...) { \
    va_list list;                                          \
    va_start(list, flags);                                 \
    const mode_t mode = ModeOf(flags, list);               \
    va_end(list);                                          \
    return OpenAt(folder, path, flags, mode);              \
  }
OPENAT(openat64)
int close(int file) {
  NEXT(close);
  Mean(file, false);
  return next(file);
}

#define READ(result, name, parameters, arguments)      \
  result name parameters {                             \
    NEXT(name);                                        \
    if (MayNotBeRead(file) && Fails(kRead)) return -1; \
    return next arguments;                             \
  }
READ(ssize_t, read, (int file, void* to, size_t bytes), (file, to, bytes))
READ(ssize_t, pread, (int file, void* to, size_t bytes, off_t at), (file, to, bytes, at))
READ(ssize_t, pread64, (int file, void* to, size_t bytes, off64_t at), (file, to, bytes, at))
READ(ssize_t, preadv, (int file, const iovec* to, int count, off_t at), (file, to, count, at))
READ(ssize_t, preadv64, (int file, const iovec* to, int count, off64_t at), (file, to, count, at))

// Half of it is written where the calls are to be short: who writes must go on.
#define WRITE(name, parameters, arguments)                          \
  ssize_t name parameters {                                         \
    NEXT(name);                                                     \
    if (!IsMeant(file)) return next arguments;                      \
    if (Fails(kWrite)) return -1;                                   \
    if (bytes > 1 && bytes % 512 != 0 && Fails(kShort)) bytes /= 2; \
    return next arguments;                                          \
  }
WRITE(write, (int file, const void* from, size_t bytes), (file, from, bytes))
WRITE(pwrite, (int file, const void* from, size_t bytes, off_t at), (file, from, bytes, at))
WRITE(pwrite64, (int file, const void* from, size_t bytes, off64_t at), (file, from, bytes, at))

#define VECTORS(name, at_type)                                       \
  ssize_t name(int file, const iovec* from, int count, at_type at) { \
    NEXT(name);                                                      \
    if (IsMeant(file) && Fails(kWrite)) return -1;                   \
    return next(file, from, count, at);                              \
  }
VECTORS(pwritev, off_t)
VECTORS(pwritev64, off64_t)
ssize_t writev(int file, const iovec* from, int count) {
  NEXT(writev);
  if (IsMeant(file) && Fails(kWrite)) return -1;
  return next(file, from, count);
}

#define ON_FILE(kind, name, parameters, arguments) \
  int name parameters {                            \
    NEXT(name);                                    \
    if (IsMeant(file) && Fails(kind)) return -1;   \
    return next arguments;                         \
  }
ON_FILE(kSync, fsync, (int file), (file))
ON_FILE(kSync, fdatasync, (int file), (file))
// Without flags it does nothing, and fails only where there is no such call.
int sync_file_range(int file, off64_t at, off64_t bytes, unsigned int flags) {
  NEXT(sync_file_range);
  if (flags != 0 && IsMeant(file) && Fails(kSync)) return -1;
  return next(file, at, bytes, flags);
}
ON_FILE(kResize, ftruncate, (int file, off_t bytes), (file, bytes))
ON_FILE(kResize, ftruncate64, (int file, off64_t bytes), (file, bytes))
ON_FILE(kResize, fallocate, (int file, int mode, off_t at, off_t bytes), (file, mode, at, bytes))
ON_FILE(kResize, fallocate64, (int file, int mode, off64_t at, off64_t bytes),
        (file, mode, at, bytes))
ON_FILE(kLock, flock, (int file, int what), (file, what))

int rename(const char* from, const char* to) {
  NEXT(rename);
  if (IsMeant(std::string_view(to)) && Fails(kRename)) return -1;
  return next(from, to);
}
int unlink(const char* path) {
  NEXT(unlink);
  if (IsMeant(std::string_view(path)) && Fails(kUnlink)) return -1;
  return next(path);
}
int mkdir(const char* path, mode_t mode) {
  NEXT(mkdir);
  if (IsMeant(std::string_view(path)) && Fails(kFolder)) return -1;
  return next(path, mode);
}
void* mmap(void* where, size_t bytes, int protection, int flags, int file, off_t at) {
  NEXT(mmap);
  if (IsMeant(file) && Fails(kMap)) return MAP_FAILED;
  return next(where, bytes, protection, flags, file, at);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  NEXT(pthread_create);
  if (Fails(kThread)) return EAGAIN;
  return next(thread, attributes, run, argument);
}

int clock_gettime(clockid_t clock, timespec* time) {
  NEXT(clock_gettime);
  const int result = next(clock, time);
  if (result == 0 && clock == CLOCK_REALTIME) *time = Moved(*time);
  return result;
}

}  // extern "C"
// NOLINTEND
