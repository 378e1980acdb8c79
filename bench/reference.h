// The loops' older name.
#pragma once
#include "bench/reference_loops.h"
