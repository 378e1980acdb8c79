# Read by cpack when it packs: what stands in the control files of the Debian packages.
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_HOMEPAGE "https://prefixd.example")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${CPACK_PACKAGE_CONTACT}")
set(same "${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")
set(scripts "${CPACK_PREFIXD_SOURCE}/deploy/debian")

set(CPACK_DEBIAN_PREFIXD_PACKAGE_NAME prefixd)
set(CPACK_DEBIAN_PREFIXD_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PREFIXD_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PREFIXD_PACKAGE_RECOMMENDS libzmq5)  # loaded when --events-publish asks for it
set(CPACK_DEBIAN_PREFIXD_PACKAGE_DEPENDS "init-system-helpers (>= 1.54~), systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles")
set(CPACK_DEBIAN_PREFIXD_DESCRIPTION "prefix cache beside LLM workers
prefixd keeps the KV cache of LLM inference across requests, processes and
restarts. Workers on the same host ask it for the longest known prefix of a
prompt and compute only the rest; all of them read one copy in place.
.
This package has the daemon, prefixctl, which shows and changes what it holds,
and prefixd-llama, a proxy before stock llama-servers.")
set(CPACK_DEBIAN_PREFIXD_PACKAGE_CONTROL_EXTRA "${scripts}/prefixd/postinst;${scripts}/prefixd/prerm;${scripts}/prefixd/postrm;${scripts}/prefixd/conffiles")

set(CPACK_DEBIAN_LIB_PACKAGE_NAME libprefixd1)
set(CPACK_DEBIAN_LIB_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIB_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIB_DESCRIPTION "client library of the prefix cache beside LLM workers
Engines find cached prefixes of prompts in prefixd, and store new ones, through
the C functions of libprefixd.so.1.")
# CPack would make scripts that run ldconfig, where Debian has a trigger, and of a removed package its script would stay. It makes none
# where one is named, and passes over one that is not there.
set(made "${CPACK_PACKAGE_DIRECTORY}/control")
file(WRITE "${made}/shlibs" "libprefixd 1 libprefixd1 (>= ${CPACK_PACKAGE_VERSION})\nlibprefixd_cuda 1 libprefixd1 (>= ${CPACK_PACKAGE_VERSION})\n")
file(WRITE "${made}/triggers" "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIB_PACKAGE_CONTROL_EXTRA "${made}/shlibs;${made}/triggers;${made}/none/postinst;${made}/none/postrm")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME prefixd-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libprefixd1 (= ${same}), libabsl-dev, libgrpc++-dev, libgrpc-dev, libhwy-dev, libprotobuf-dev, libssl-dev, libxxhash-dev")
set(CPACK_DEBIAN_DEV_DESCRIPTION "headers and libraries for engines that use prefixd
Headers of the C and the C++ client, the C++ client as an archive, files for
CMake's find_package(prefixd) and for pkg-config, and prefixd-worker, a
reference inference worker on the CPU.")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-prefixd)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "libprefixd1 (>= ${same}), python3 (>= 3.11), python3-numpy")
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS prefixd)
set(CPACK_DEBIAN_PYTHON_DESCRIPTION "Python client of the prefix cache beside LLM workers
The package prefixd: engines in Python find and store the KV cache of prompts,
with adapters for mlx-lm, transformers, vLLM and llama-cpp-python.")
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA "${scripts}/python/postinst;${scripts}/python/prerm")
