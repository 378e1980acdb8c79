// prefixctl without main(): command line, calls, views.
#pragma once
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "client/cli/options.h"

namespace prefixd::cli {

struct Terminal {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool can_ask = false;  // somebody reads `err` and answers on `in`
};

// Runs prefixctl with `arguments`, which leave out the program's name. Returns the exit code.
int RunPrefixctl(const std::vector<std::string>& arguments, const Surroundings& surroundings,
                 Terminal terminal);

}  // namespace prefixd::cli
