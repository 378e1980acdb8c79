#!/usr/bin/env python3
"""What a system is asked for stands in src/os: no other product code names a call, a constant, a header or a file that
Linux or Darwin alone has, and neither does the portable flavour. Darwin's folder names nothing of Linux's."""
import re
import sys

import tree

ROOM = "src/os/"
PORTABLE = ("src/os/portable/", "src/os/posix/")
DARWIN = "src/os/darwin/"
HEADERS = re.compile(r"^\s*#\s*include\s*<(linux/[^>]+|malloc\.h|sys/(?:epoll|eventfd|fanotify|inotify|memfd|prctl|"
                     r"sendfile|signalfd|statfs|syscall|sysinfo|timerfd|vfs|xattr)\.h)>", re.M)
LINUX = (r"memfd_create|MFD_\w+|F_(?:ADD|GET)_SEALS|F_SEAL_\w+|F_OFD_\w+|fallocate(?:64)?|FALLOC_FL_\w+|"
         r"MADV_\w+|madvise|mremap|SOCK_(?:SEQPACKET|CLOEXEC|NONBLOCK)|accept4|pipe2|dup3|MSG_CMSG_CLOEXEC|"
         r"MSG_(?:TRUNC|ERRQUEUE)|SO_PEER\w+|SO_COOKIE|ucred(?!\.h)|SCM_CREDENTIALS|epoll_\w+|EPOLL\w+|eventfd\w*|EFD_\w+|signalfd|"
         r"timerfd_\w+|inotify_\w+|O_DIRECT|O_TMPFILE|O_PATH|POLLRDHUP|ppoll|posix_fadvise|POSIX_FADV_\w+|"
         r"fdatasync|sync_file_range|copy_file_range|preadv2|pwritev2|statx|TMPFS_MAGIC|st_[acm]tim|"
         r"renameat2|getrandom|syscall|prctl|gettid|environ|sched_[gs]etaffinity|sigtimedwait|"
         r"sigwaitinfo|mallopt|mallinfo2?|malloc_trim|M_(?:MMAP|TRIM)_THRESHOLD|TCP_KEEPIDLE|TCP_USER_TIMEOUT|"
         r"pidfd_\w+|process_vm_\w+|futex|secure_getenv|getauxval")
# What Linux and Darwin have, or Darwin alone.
BEYOND_POSIX = (r"f?statfs|pthread_setname_np|TCP_KEEP\w+|SEEK_(?:HOLE|DATA)|sysctl(?:byname)?|F_(?:PREALLOCATE|PUNCHHOLE|NOCACHE|"
                r"(?:FULL|BARRIER)FSYNC)|fstore_t|fpunchhole_t|LOCAL_PEER\w+|getpeereid|xucred|SO_NOSIGPIPE|kinfo_proc|proc_pid\w+|"
                r"host_statistics64|mach_\w+|task_info|minherit|st_[acm]timespec|malloc_zone_\w+|_CS_DARWIN_\w+|_NSGetExecutablePath|"
                r"__interpose|kqueue|kevent64?")
# What POSIX has and Darwin does not.
NOT_DARWINS = "posix_fallocate"
EVERYWHERE = re.compile(rf"\b({LINUX}|{BEYOND_POSIX}|{NOT_DARWINS})\b")
IN_POSIX = re.compile(rf"\b({LINUX}|{BEYOND_POSIX})\b")
IN_DARWIN = re.compile(rf"\b({LINUX}|{NOT_DARWINS})\b")
FILES = re.compile(r'"[^"\n]*(/proc/|/sys/|/dev/fd)')
FILES_OF_LINUX = re.compile(r'"[^"\n]*(/proc/|/sys/|/dev/shm)')
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


def without_comments(text):
    """The text with comments blanked, line by line; a // inside a string is no comment."""
    return re.sub(f"({STRING.pattern})|{COMMENT.pattern}", lambda m: m.group(1) or "\n" * m.group(0).count("\n"), text, flags=re.S)


def rules(name):
    """What may not stand in a file: (whose, the verb, patterns of names, of files). None where everything may."""
    if name.startswith("src/os/posix/"):
        return "a system of POSIX alone", "has no", IN_POSIX, FILES
    if name.startswith(PORTABLE):
        return "the portable flavour", "has no system with", EVERYWHERE, FILES
    if name.startswith(DARWIN):
        return "Darwin", "has no", IN_DARWIN, FILES_OF_LINUX
    if name.startswith(ROOM):
        return None
    return "only src/os", "may name", EVERYWHERE, FILES


def check(root):
    complaints = []
    for path in tree.cpp_files(root, tree.CODE):
        name = str(path.relative_to(root))
        if (rule := rules(name)) is None:
            continue
        where, verb, names, files = rule
        code = without_comments(path.read_text())
        for pattern, text in ((HEADERS, code), (files, code), (names, STRING.sub('""', code))):
            for found in pattern.finditer(text):
                line = text.count("\n", 0, found.start(1)) + 1
                complaints.append(f"system: {name}:{line}: {where} {verb} {found.group(1)}")
    return complaints


def self_test():
    clean = {
        "src/os/linux/memory.cc": '#include <sys/eventfd.h>\nint fd = memfd_create("x", MFD_CLOEXEC);\n',
        "src/os/facts/machine.cc": 'const char* f = "/proc/meminfo";\n',
        "src/os/portable/memory.cc": "int fd = shm_open();\n",
        "src/os/posix/memory.cc": "int e = posix_fallocate(fd, 0, 1);\n",
        "src/os/darwin/files.cc": 'int e = fcntl(fd, F_PUNCHHOLE, &hole); const char* f = "/dev/fd";\n#include <sys/sysctl.h>\n',
        "daemon/settings.cc": 'const char* help = "off: for filesystems without O_DIRECT";  // fallocate, /proc/self\n',
        "client/cpp/a.cc": 'const char* url = "http://x"; int memfd_created = 0; /* prctl\n */\n',
    }
    return tree.self_test(check, clean, [
        ("a header of Linux", "src/ram/a.cc", "#include <sys/eventfd.h>\n", "src/ram/a.cc:1: only src/os may name sys/eventfd.h"),
        ("a header of the kernel", "client/cli/a.cc", "#include <linux/magic.h>\n", "linux/magic.h"),
        ("a call of Linux", "src/ram/a.cc", '\nint f = memfd_create("x", 0);\n', "src/ram/a.cc:2: only src/os may name memfd_create"),
        ("a constant of Linux", "daemon/a.cc", "int f = open(path, O_RDWR | O_DIRECT);\n", "O_DIRECT"),
        ("a flag of socket()", "client/cpp/a.cc", "int s = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);\n", "SOCK_SEQPACKET"),
        ("a file of the kernel", "daemon/a.cc", 'std::ifstream f("/proc/self/stat");\n', "/proc/"),
        ("code behind a comment", "daemon/a.cc", "/* x */ int e = eventfd(0, 0);\n", "eventfd"),
        ("Linux in the portable flavour", "src/os/portable/wake.cc", "int e = eventfd(0, 0);\n", "the portable flavour"),
        ("what Darwin lacks", "src/os/portable/memory.cc", "int e = posix_fallocate(fd, 0, 1);\n", "posix_fallocate"),
        ("Linux in the calls of POSIX", "src/os/posix/files.cc", "int e = fdatasync(fd);\n", "a system of POSIX alone has no fdatasync"),
        ("Linux on Darwin", "src/os/darwin/files.cc", "int e = fdatasync(fd);\n", "Darwin has no fdatasync"),
        ("a header of Linux on Darwin", "src/os/darwin/a.cc", "#include <sys/vfs.h>\n", "Darwin has no sys/vfs.h"),
        ("a file of Linux on Darwin", "src/os/darwin/a.cc", 'const char* f = "/proc/self/fd";\n', "Darwin has no /proc/"),
        ("Darwin in other code", "daemon/a.cc", "int e = fcntl(fd, F_FULLFSYNC);\n", "only src/os may name F_FULLFSYNC"),
        ("a file of the kernel there", "src/os/portable/files.cc", 'const char* f = "/proc/self/fd";\n', "/proc/"),
    ])


if __name__ == "__main__":
    sys.exit(self_test() if "--self-test" in sys.argv else tree.report(check(tree.ROOT)))
