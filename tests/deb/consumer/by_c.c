// Every C header of the installation, and one call.
#include <prefixd.h>
#include <prefixd/cuda.h>
#include <prefixd_llama.h>
#include <stdio.h>

int main(void) {
  printf("abi %u\n", prefixd_abi_version());
  return 0;
}
