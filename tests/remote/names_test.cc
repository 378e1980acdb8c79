#include "remote/names.h"

#include "gtest/gtest.h"
