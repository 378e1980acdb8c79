// A protobuf of another version, as far as a library can tell that is bound to it by mistake:
// functions of the same names that do something else.
#include <stdio.h>
#include <stdlib.h>

static void called(const char* name) {
  printf("bound to the program's %s\n", name);
  fflush(stdout);
  _Exit(9);
}

#define OTHER(number, symbol)                  \
  void other_##number(void) __asm__(symbol);   \
  void other_##number(void) { called(symbol); }

OTHER(1, "_ZN6google8protobuf8internal19PackedFixed64ParserEPvPKcPNS1_12ParseContextE")
OTHER(2, "_ZN6google8protobuf8internal19PackedFixed32ParserEPvPKcPNS1_12ParseContextE")
OTHER(3, "_ZN6google8protobuf8internal15ReadTagFallbackEPKcj")
OTHER(4, "_ZN6google8protobuf13RepeatedFieldIjE7ReserveEi")
OTHER(5, "_ZN6google8protobuf13RepeatedFieldImE7ReserveEi")
OTHER(6, "_ZN6google8protobuf8internal12ParseContext12ParseMessageEPNS0_11MessageLiteEPKc")
OTHER(7, "_ZN6google8protobuf2io20ZeroCopyOutputStream15WriteAliasedRawEPKvi")
OTHER(8, "_ZN6google8protobuf8internal20RepeatedPtrFieldBase14InternalExtendEi")
