#include "os/darwin/folders.h"

#include <unistd.h>

#include "os/machine.h"
#include "os/memory.h"

namespace prefixd::os {

std::string UserFolder(int name) {
  std::string folder(confstr(name, nullptr, 0), '\0');
  if (folder.empty() || confstr(name, folder.data(), folder.size()) != folder.size()) return "";
  folder.pop_back();  // the zero behind it
  while (folder.ends_with('/')) folder.pop_back();
  return folder;
}

// The system empties the folder of temporary files of what nobody has read for three days, so this
// is the folder of caches.
std::string FolderForSharedMemory() {
  const std::string folder = UserFolder(_CS_DARWIN_USER_CACHE_DIR);
  return folder.empty() ? "/var/tmp" : folder;
}

std::string FolderForSockets() { return UserFolder(_CS_DARWIN_USER_DIR); }

}  // namespace prefixd::os
