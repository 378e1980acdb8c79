// The folders that Darwin makes for each user, below /var/folders. For this flavour's files alone.
#pragma once
#include <string>

namespace prefixd::os {

// `name`: _CS_DARWIN_USER_DIR and its like. Empty if the system does not tell; without a slash at
// its end.
std::string UserFolder(int name);

}  // namespace prefixd::os
