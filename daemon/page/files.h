// The files of the page as the build has put them into the program (daemon/page/embed.cmake).
//
// Pure data.
#pragma once
#include <span>
#include <string_view>

namespace prefixd::daemon {

struct PageFile {
  std::string_view path;  // as it is asked for: "/page/page.css"
  const char* type;       // of its content, for HTTP
  std::string_view bytes;
};

std::span<const PageFile> PageFiles();

}  // namespace prefixd::daemon
